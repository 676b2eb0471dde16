"""Where the files of a Delta table are: a directory that this machine sees, or an object store. One noun, two kinds.

Names of files are relative to the table. A directory makes files durable by fsync. In an object store a file is there
as a whole, and durable, once it is closed, or it is not there; nothing can be locked there, and of two who create one
entry of the table's log the store refuses the second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from datasource.delta.storage_options import NONE, ObjectStoreError, StorageOptions, explained, scheme_of
from logstore.checkpoint import make_directory, write_atomic
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.fs import DeltaStorageHandler

_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


class TableStorage(Protocol):
    """The place of a table; `str` of it is how a person knows it."""

    @property
    def reads_ahead(self) -> bool:
        """Does each read of a file take a round trip, so that few large ones are better?"""

    @property
    def rest_ms(self) -> int:
        """How long an idle reader waits between two looks, each of which may cost money."""

    @property
    def directory(self) -> Path | None:
        """The directory; None: it is none."""

    @property
    def uri(self) -> str:
        """The place for deltalake. Raises: InvalidRequestError: deltalake would take it for another one."""

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options for deltalake."""

    def __truediv__(self, name: str) -> TableStorage:
        """The place of this name in it."""

    def beside(self, suffix: str) -> TableStorage:
        """The place whose name is this one's and the suffix."""

    def relative_to(self, base: TableStorage) -> str | None:
        """Return its name in `base`; None: it is not there."""

    def told(self) -> AbstractContextManager[None]:
        """Raise errors of the block as one line without secrets: ObjectStoreError; a missing file as it is."""

    def read(self, name: str) -> bytes:
        """Return the content. Raises: FileNotFoundError."""

    def identity(self, name: str) -> Hashable | None:
        """Return what changes when the file is replaced; None: there is none."""

    def names(self, directory: str) -> list[str]:
        """Return the names of the files in it, which need not exist."""

    def open_input(self, name: str) -> pa.NativeFile:
        """Open a file to read any part of it. Raises: FileNotFoundError."""

    def create(self, name: str) -> pa.NativeFile:
        """Open a new file to write."""

    def finished(self, name: str) -> int:
        """Make a file that was closed durable but for its directory; return its size in bytes."""

    def remove(self, name: str) -> None:
        """Remove a file. Raises: OSError, PylogError."""

    def make_durable(self, names: Iterable[str], directories: Iterable[str] = (), *, missing_ok: bool = False) -> None:
        """Make files durable, with the directories that lead to them, and these directories."""

    def make(self) -> None:
        """Make the place, durably."""

    def notes(self, name: str) -> dict[str, bytes]:
        """Return the notes of this name, by their files: more than one, if writers did not know of each other."""

    def write_note(self, name: str, content: bytes, replaces: Iterable[str]) -> str:
        """Write a note in place of those in these files; it is durable on return. Return its file."""

    def name_of_note(self, name: str) -> str:
        """How a person knows these notes."""

    def alone(self, name: str) -> AbstractContextManager[bool]:
        """Keep others out of the block, by a lock of this name; yield False if one is at work already.

        Where nothing can be locked it is always True.
        """


@dataclass(frozen=True, slots=True)
class TableDirectory:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def reads_ahead(self) -> bool:
        return False

    @property
    def rest_ms(self) -> int:
        return 0

    @property
    def directory(self) -> Path | None:
        return self.path

    @property
    def uri(self) -> str:
        if found := _ESCAPE.search(str(self.path.resolve())):
            raise InvalidRequestError(
                f"{self.path}: the package deltalake cannot use a directory with {found[0]} in its path; "
                "give another one with --table (table=)"
            )
        return str(self.path)

    @property
    def options(self) -> dict[str, str] | None:
        return None

    def __truediv__(self, name: str) -> TableDirectory:
        return TableDirectory(self.path / name)

    def beside(self, suffix: str) -> TableDirectory:
        return TableDirectory(self.path.with_name(f"{self.path.name}{suffix}"))

    def relative_to(self, base: TableStorage) -> str | None:
        if base.directory is None:
            return None
        path, other = self.path.resolve(), base.directory.resolve()
        return str(path.relative_to(other)) if path.is_relative_to(other) else None

    @contextmanager
    def told(self) -> Iterator[None]:
        yield

    def read(self, name: str) -> bytes:
        return SYSTEM.files.read_all(self.path / name)

    def identity(self, name: str) -> Hashable | None:
        return SYSTEM.files.stat(self.path / name)

    def names(self, directory: str) -> list[str]:
        if SYSTEM.files.stat(self.path / directory) is None:
            return []
        return list(SYSTEM.files.list(self.path / directory).names)

    def open_input(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(str(self.path / name))

    def create(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        path = self.path / name
        SYSTEM.files.mkdir(path.parent)
        return pa.OSFile(str(path), "wb")

    def finished(self, name: str) -> int:
        path = self.path / name
        SYSTEM.files.fsync(path)
        found = SYSTEM.files.stat(path)
        SYSTEM.files.forget(path)
        assert found is not None, path
        return found.size

    def remove(self, name: str) -> None:
        SYSTEM.files.unlink(self.path / name)

    def make_durable(self, names: Iterable[str], directories: Iterable[str] = (), *, missing_ok: bool = False) -> None:
        found = {self.path, *(self.path / name for name in directories)}
        for name in names:
            path = self.path / name
            try:
                SYSTEM.files.fsync(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                continue
            finally:
                SYSTEM.files.forget(path)  # it is Delta's, which may remove it
            found |= {d for d in path.parents if d.is_relative_to(self.path)}
        for directory in sorted(found):
            SYSTEM.files.fsync(directory)

    def make(self) -> None:
        make_directory(SYSTEM, self.path)

    def notes(self, name: str) -> dict[str, bytes]:
        try:
            return {f"{name}.json": self.read(f"{name}.json")}
        except FileNotFoundError:
            return {}

    def write_note(self, name: str, content: bytes, replaces: Iterable[str]) -> str:
        path = self.path / f"{name}.json"
        make_directory(SYSTEM, path.parent)
        write_atomic(SYSTEM, path, content)
        return f"{name}.json"

    def name_of_note(self, name: str) -> str:
        return str(self.path / f"{name}.json")

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        path = self.path / f"{name}.lock"
        SYSTEM.files.mkdir(path.parent)
        lock = SYSTEM.files.lock(path, wait=False)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()


@dataclass(frozen=True, slots=True)
class TableBucket:
    """A place in an object store, by its URL."""

    url: str
    storage: StorageOptions = NONE

    def __str__(self) -> str:
        return self.url

    @property
    def reads_ahead(self) -> bool:
        return True

    @property
    def rest_ms(self) -> int:
        return 1000

    @property
    def directory(self) -> Path | None:
        return None

    @property
    def uri(self) -> str:
        return self.url

    @property
    def options(self) -> dict[str, str] | None:
        return self.storage.for_deltalake()

    def __truediv__(self, name: str) -> TableBucket:
        return TableBucket(f"{self.url}/{name}" if name not in ("", ".") else self.url, self.storage)

    def beside(self, suffix: str) -> TableBucket:
        return TableBucket(f"{self.url}{suffix}", self.storage)

    def relative_to(self, base: TableStorage) -> str | None:
        inside = f"{self.url}/".startswith(f"{base}/")
        return self.url[len(str(base)) :].strip("/") or "." if inside else None

    @contextmanager
    def told(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except PylogError:
            raise
        except (DeltaError, OSError, ValueError) as error:
            line = f"{self.url}: {explained(error, self.url.partition(':')[0], self.storage)}"
            is_missing = isinstance(error, FileNotFoundError) and "bucket does not exist" not in line
            raise (FileNotFoundError(line) if is_missing else ObjectStoreError(line)) from None

    @property
    def _store(self) -> DeltaStorageHandler:
        with self.told():
            return _opened(self.url, self.storage, os.getpid())

    def read(self, name: str) -> bytes:
        with self.open_input(name) as file:
            return bytes(file.read())

    def identity(self, name: str) -> Hashable | None:
        with self.told():
            (found,) = self._store.get_file_info([name])
        return (found.mtime_ns, found.size) if found.is_file else None

    def names(self, directory: str) -> list[str]:
        import pyarrow.fs as pa_fs

        with self.told():
            found = self._store.get_file_info_selector(pa_fs.FileSelector(directory, allow_not_found=True))
        return [file.base_name for file in found if file.is_file]

    def open_input(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        with self.told():
            return pa.PythonFile(_Told(self._store.open_input_file(name), self), mode="r")

    def create(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        with self.told():
            return pa.PythonFile(_Told(self._store.open_output_stream(name), self), mode="w")

    def finished(self, name: str) -> int:
        with self.told():
            (found,) = self._store.get_file_info([name])
        if not found.is_file:
            raise ObjectStoreError(f"{self.url}/{name} was written, and is not there")
        return int(found.size)

    def remove(self, name: str) -> None:
        with self.told():
            self._store.delete_file(name)

    def make_durable(self, names: Iterable[str], directories: Iterable[str] = (), *, missing_ok: bool = False) -> None:
        """Do nothing, not even look for the names: what is there is durable."""

    def make(self) -> None:
        """Do nothing: an object needs no directory."""

    def notes(self, name: str) -> dict[str, bytes]:
        directory, _, stem = name.rpartition("/")
        try:
            files = sorted(f"{directory}/{file}" for file in self.names(directory) if file.startswith(f"{stem}."))
            return {file: self.read(file) for file in files}
        except FileNotFoundError:  # replaced meanwhile, by one that the list may lack
            return self.notes(name)

    def write_note(self, name: str, content: bytes, replaces: Iterable[str]) -> str:
        """Write a new object, and remove these: a note that somebody else wrote meanwhile stays beside it."""
        file = f"{name}.{SYSTEM.random.getrandbits(64):016x}.json"
        with self.create(file) as out:
            out.write(content)
        for old in replaces:
            self.remove(old)
        return file

    def name_of_note(self, name: str) -> str:
        return f"{self.url}/{name}.*.json"

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        yield True


class _Told:
    """A file of deltalake's, whose errors are told as those of its place."""

    def __init__(self, file: Any, place: TableBucket) -> None:
        self._file, self._place = file, place

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if not callable(found):
            return found

        def call(*args: Any) -> Any:
            with self._place.told():
                return found(*args)

        return call

    def write(self, data: Any) -> int:
        with self._place.told():
            return int(self._file.write(bytes(data)))


@lru_cache(maxsize=64)
def _opened(url: str, storage: StorageOptions, process: int) -> DeltaStorageHandler:
    from deltalake.fs import DeltaStorageHandler

    class Handler(DeltaStorageHandler):
        def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
            """Return deltalake's own stream: Arrow's around it hands on buffers, which it does not take."""
            return self._handler.open_output_stream(path, metadata)

    return Handler(url, storage.for_deltalake())


def storage_of(table: str | Path, storage: StorageOptions = NONE, *, base: Path | None = None) -> TableStorage:
    """Return the place that a text names: a URL of an object store, or a directory, below `base` if it is relative.

    Raises: InvalidConfigError: neither, or the options are for other stores.
    """
    text = str(table).strip()
    scheme = scheme_of(text)
    storage.check_scheme(scheme)
    if scheme:
        return TableBucket(text.rstrip("/"), storage)
    path = Path(re.sub(r"(?i)^file:/+", "/", text))
    return TableDirectory((base or Path.cwd()) / path)
