"""The events of the offsets of a group, and their effects. `request` is as in `groups.classic.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.groups.keys import NO_KEYS, Key
from replication.coordinators.groups.messages import Answer, Append, Appended, Body, Write
from replication.coordinators.groups.offsets.state import Committed
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    request: int
    offsets: Mapping[TopicPartition, Committed]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    producer: tuple[int, int] | None = None  # id and epoch: the offsets count once its transaction is committed
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of the topics that have one


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The partition of the group has the marker of this producer."""

    producer_id: int
    commits: bool


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """`subscribed`: topics whose offsets stay, since members read them."""

    request: int
    partitions: tuple[TopicPartition, ...]
    subscribed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Topics are gone. `before`: only offsets before this place in the log belong to them."""

    topics: frozenset[str]
    before: int | None = None


@dataclass(frozen=True, slots=True)
class ForgetAgain:
    """Offsets of deleted topics are not deleted yet; `positions`: where the last of each partition lies."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Time has passed. The group says how: the driver leaves all fields out.

    `since_ms`: the retention begins there; None: with each commit. `subscribed`: topics whose offsets stay; None: all.
    `empty_generation`: of a group that nobody is in, and that is deleted with its last offset; None: of any other one.
    `gone_keys`: the records of the group that are deleted then.
    """

    since_ms: int | None = None
    subscribed: frozenset[str] | None = frozenset()
    empty_generation: int | None = None
    gone_keys: frozenset[Key] = NO_KEYS


@dataclass(frozen=True, slots=True)
class DeleteAll:
    """The group is deleted, which nobody is in, with these records; `request` asked for it."""

    request: int
    empty_generation: int
    gone_keys: frozenset[Key]


Event: TypeAlias = (
    Commit | TransactionEnded | DeleteOffsets | DeleteAll | ForgetTopics | ForgetAgain | ExpireOffsets | Appended
)

# ------------------------------------------------------- what a write is for


@dataclass(frozen=True, slots=True)
class NewOffsets(Write):
    """Offsets of a commit; `refused` are not stored."""

    request: int
    offsets: Mapping[TopicPartition, Committed]
    refused: Mapping[TopicPartition, ErrorCode]
    producer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class GoneOffsets(Write):
    """Deleted offsets; `request` asked for it, if any.

    `empty_generation`: the group is deleted with them if it has this generation then, and nobody is in it; the records
    of `gone_keys` are in any case.
    `positions`: where the last offset of each partition lies, if their topics are gone.
    """

    partitions: tuple[TopicPartition, ...]
    empty_generation: int | None = None
    gone_keys: frozenset[Key] = NO_KEYS
    request: int | None = None
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class AppendOffsets(Append):
    """Store offsets (None: deleted). `gone_keys`: records of the group that are deleted with them."""

    offsets: Mapping[TopicPartition, Committed | None]
    gone_keys: frozenset[Key] = NO_KEYS


@dataclass(frozen=True, slots=True)
class ForgetLater:
    """Post ForgetAgain in a while."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetsDone(Body):
    """Answers Commit and DeleteOffsets: `error` for all, or else `refused`; the rest is done."""

    error: ErrorCode = ErrorCode.NONE
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


Effect: TypeAlias = AppendOffsets | ForgetLater | Answer
