"""The checkpoint of a query in a local or mounted directory: whose it is, and the input of a batch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from datasource.connector.offsets import StreamOffset
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError

QUERY_ID = "sql.streaming.queryId"  # the local property of a task, and of the thread, of a query


def directory_of(checkpoint: str | None) -> str:
    """Return the absolute path of a checkpoint; "" if it is not in a directory of this machine."""
    found = re.match(r"(?:file:/*(?=/))?(/.*)", checkpoint or "")
    return found[1] if found else ""


def origin_of(checkpoint: str | None, batch_id: int) -> str:
    """Return the hash of the micro-batch's entry in the query's offset log; "" if it cannot be read here.

    Spark writes the entry once, before the batch first runs, so a replay of the same input has the same one.
    """
    entry = _read(checkpoint, f"offsets/{batch_id}")
    return hashlib.sha256(entry).hexdigest() if entry else ""


def query_id_of(checkpoint: str | None) -> str:
    """Return the id that Spark gave the query of this checkpoint; "" if it cannot be read here."""
    try:
        return str(json.loads(_read(checkpoint, "metadata") or b"{}").get("id", ""))
    except ValueError:
        return ""


def refuse_reset(checkpoint: str | None) -> None:
    """Raise InvalidRequestError if a full refresh of a pipeline began this checkpoint, in a local directory.

    Spark forgets the progress of a flow by a directory with the next number (STORAGE/_checkpoints/SINK/FLOW/1), and
    expects an empty target. A topic still has what the flow wrote, so the flow would write everything once more.
    """
    directory = directory_of(checkpoint).rstrip("/")
    found = re.fullmatch(r"(.*/_checkpoints(?:/[^/]+){2,})/([1-9]\d*)", directory)
    if found is None:
        return
    before = f"{found[1]}/{int(found[2]) - 1}"
    if _read(before, "metadata"):
        raise InvalidRequestError(
            "nothing was written: a full refresh made the pipeline forget what this flow has written, and its topic "
            f"still has that. To go on from there remove {directory}, and refresh tables only (--full-refresh TABLE); "
            f"to write everything once more, recreate the topic and remove {before}"
        )


def queries_of(directory: Path) -> Iterator[tuple[str, StreamOffset | str]]:
    """Yield the queries with a checkpoint in this directory, or right below it, by the names of their directories.

    With each comes how far it has committed, once for every source of pylog, or why that cannot be told.
    """
    directory = directory.absolute()
    below = (directory / name for name in sorted(SYSTEM.files.list(directory).names))
    found = [directory] if _is_checkpoint(directory) else [each for each in below if _is_checkpoint(each)]
    if not found:
        yield directory.name, f"{directory} holds no checkpoint of a query"
    for checkpoint in found:
        yield from ((checkpoint.name, each) for each in _committed(checkpoint))


def _is_checkpoint(directory: Path) -> bool:
    return (directory / "offsets").is_dir()


def _committed(checkpoint: Path) -> Iterator[StreamOffset | str]:
    commits = checkpoint / "commits"
    names = SYSTEM.files.list(commits).names if commits.is_dir() else ()
    batches = [int(name) for name in names if name.isdecimal()]
    if not batches:
        yield "it has committed no batch yet"
        return
    name = f"offsets/{max(batches)}"
    # A line for the version, one for the batch, and one for each source.
    lines = _read(str(checkpoint), name).decode(errors="replace").splitlines()[2:]
    if not lines:
        yield f"{checkpoint / name} names no source"
    for line in lines:
        try:
            yield StreamOffset.from_json(json.loads(line))
        except (ValueError, PylogError):
            yield f"no source of pylog: {line[:60]}"


def _read(checkpoint: str | None, name: str) -> bytes:
    """Return a file of a checkpoint in a local directory, else nothing."""
    directory = directory_of(checkpoint)
    if not directory:
        return b""
    try:
        return SYSTEM.files.read_all(f"{directory}/{name}")
    except OSError:
        return b""
