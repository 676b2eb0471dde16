"""The tiered part of a log: the offsets below one are in remote storage, too."""

from __future__ import annotations

from logstore.checkpoint import marking_failure
from logstore.errors import InvalidRequestError
from logstore.log.log import Log
from logstore.log.segments import offset_checkpoints


def tiered_offset(log: Log) -> int:
    """Everything below it is in remote storage, too."""
    return offset_checkpoints.read(log.env, log.files.path, offset_checkpoints.TIERED)


def advance_tiered_offset(log: Log, offset: int) -> None:
    """Note that everything below `offset` is in remote storage; durable on return. It never goes back."""
    with log.lock():
        if offset > (end := log.files.view.end):
            raise InvalidRequestError(f"{log.files.name}: tiered to {offset}, but the log ends at {end}")
        if offset > tiered_offset(log):
            with marking_failure(log.env, log.files.root):
                offset_checkpoints.write(log.env, log.files.path, offset_checkpoints.TIERED, offset)
