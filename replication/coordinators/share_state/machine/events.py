"""The events of a share partition's state, and its effects.

`request` is a number that the driver chose for a request; it is answered once, with Answer. The driver performs an
Append and posts its outcome as Stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from replication.coordinators.share_state.machine.batches import Batches
from replication.coordinators.share_state.machine.state import Record, Snapshot
from replication.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """A group begins to share the partition, or sets its offset: InitializeShareGroupState."""

    request: int
    state_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A leader of this epoch loads the state; earlier ones are fenced from then on: ReadShareGroupState."""

    request: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The leader stores acknowledgements: WriteShareGroupState."""

    request: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """The group does not share the partition any more: DeleteShareGroupState."""

    request: int


@dataclass(frozen=True, slots=True)
class Refresh:
    """Repeat an old snapshot, so that the log before it can be deleted."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The topic is deleted."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of the Append, whose request, if there is one, is answered now."""

    append: Append
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker is no longer the coordinator of the share partition."""


Request: TypeAlias = Initialize | Read | Write | Delete | Refresh | Forget
Event: TypeAlias = Request | Stored | Unloaded

# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Append:
    """Store the record; None deletes the state. `answer` is given once that is done."""

    record: Record
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`found`: the state that a Read was for."""

    request: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    found: Snapshot | None = None


Effect: TypeAlias = Append | Answer
