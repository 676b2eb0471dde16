"""The system's errors as StorageError: here, and once."""

from __future__ import annotations

import errno
from pathlib import Path

from logstore.errors import DiskFullError, StorageError

StrPath = str | Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class mapped:  # noqa: N801  reads like the context manager it is
    """Raise the environment's errors as StorageError; a missing file stays FileNotFoundError."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: StrPath) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | StorageError):
            raise failure(self._action, self._path, error) from error


def failure(action: str, path: StrPath, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return DiskFullError(f"{path}: cannot {action}: {reason}; free some space", path=str(path), reason=reason)
    return StorageError(f"{path}: cannot {action}: {reason}", path=str(path), reason=reason)
