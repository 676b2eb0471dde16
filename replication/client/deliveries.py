"""Deliveries: the records that a member of a share group was given, and how it acknowledges them, as columns.

Laws: each offset that a broker named as acquired is acknowledged once: a record as its program says, an offset without
a record as a gap, and a record that could not be read is released. An offset that is not held is refused. Nothing here
is an object for each record.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.errors import InvalidRequestError, did_you_mean
from replication.client.share_sessions import SharePartition
from replication.model.cluster import TopicPartition

Offsets = npt.NDArray[np.int64]
Types = npt.NDArray[np.int8]
Times = npt.NDArray[np.float64]  # of the event loop's clock
SHOWN = 5  # acknowledgements in a message
AcknowledgeType = Literal["accept", "release", "reject", "renew"]


class Kind(enum.IntEnum):
    """Kinds of acknowledgements, by Kafka's numbers. UNDECIDED and RENEWED: the program has still to say one."""

    RENEWED = -2
    UNDECIDED = -1
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


_KINDS = {kind.name.lower(): kind for kind in Kind if kind > Kind.GAP}


class Acquired(NamedTuple):
    """Offsets from `first` to `last` that a broker has locked for the member, and how often it has given them out."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """One word about the offsets from `first` to `last`."""

    first: int
    last: int
    kind: Kind


class Lease(NamedTuple):
    """Where records are locked: in which session with which broker."""

    broker: int
    session: int


@dataclass(slots=True, eq=False)
class Delivery:
    """Records of one partition that were handed out. `gaps` are acknowledged with the first of them.

    `offsets` ascend; `kinds` and `until_s`, when locks may end, have one for each.
    """

    tp: TopicPartition
    topic_id: str
    lease: Lease
    offsets: Offsets
    kinds: Types
    until_s: Times
    gaps: tuple[Acknowledgement, ...] = ()


class Due(NamedTuple):
    """Acknowledgements to send, in the order of their offsets; the first of their locks may end at `until_s`."""

    tp: TopicPartition
    topic_id: str
    lease: Lease
    acknowledgements: tuple[Acknowledgement, ...]
    until_s: float

    def __str__(self) -> str:
        shown = ", ".join(f"{first}-{last} {kind.name.lower()}" for first, last, kind in self.acknowledgements[:SHOWN])
        more = len(self.acknowledgements) - SHOWN
        return f"{self.tp} offsets {shown}{f' and {more} more' if more > 0 else ''}"

    @property
    def partition(self) -> SharePartition:
        return SharePartition(self.topic_id, self.tp.partition)

    @property
    def renews(self) -> bool:
        """A lock is to last longer."""
        return any(each.kind is Kind.RENEW for each in self.acknowledgements)


NO_OFFSETS: Offsets = np.zeros(0, np.int64)


def kind_of(name: str) -> Kind:
    """Return the kind of this name. Raises: InvalidRequestError."""
    if name not in _KINDS:
        raise InvalidRequestError(f"acknowledgement {name!r}{did_you_mean(name, _KINDS)}")
    return _KINDS[name]


def counts_of(offsets: Offsets, acquired: Sequence[Acquired]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int16]]:
    """Say which of these offsets are acquired, and how often each of those was delivered."""
    if not acquired:
        return np.zeros(len(offsets), bool), np.zeros(0, np.int16)
    firsts, lasts, counts = (np.array(column, np.int64) for column in zip(*acquired, strict=True))
    place = np.searchsorted(firsts, offsets, "right") - 1
    is_acquired = (place >= 0) & (offsets <= lasts[place])
    return is_acquired, counts[place[is_acquired]].astype(np.int16)


def clipped(acquired: Sequence[Acquired], low: int, high: int) -> list[Acquired]:
    """Return what of these lies in [low, high)."""
    inside = (Acquired(max(first, low), min(last, high - 1), count) for first, last, count in acquired)
    return [each for each in inside if each.first <= each.last]


def gaps_of(offsets: Offsets, acquired: Sequence[Acquired], read_end: int) -> tuple[Acknowledgement, ...]:
    """Name the acquired offsets that are none of these ascending ones: a gap below `read_end`, and else released."""
    found: list[Acknowledgement] = []
    for first, last, _ in acquired:
        begin, end = np.searchsorted(offsets, (first, last + 1))
        if end - begin != last - first + 1:
            for low, high in _between(first, last, offsets[begin:end]):
                found += _parted(low, high, read_end)
    return tuple(found)


def _between(first: int, last: int, present: Offsets) -> Iterator[tuple[int, int]]:
    """Yield what of [first, last] is not in `present`."""
    after = np.flatnonzero(np.diff(present) > 1)
    if not len(present):
        yield first, last
        return
    if first < present[0]:
        yield first, int(present[0]) - 1
    for at in after.tolist():
        yield int(present[at]) + 1, int(present[at + 1]) - 1
    if present[-1] < last:
        yield int(present[-1]) + 1, last


def _parted(low: int, high: int, read_end: int) -> Iterator[Acknowledgement]:
    if low < read_end:
        yield Acknowledgement(low, min(high, read_end - 1), Kind.GAP)
    if high >= read_end:
        yield Acknowledgement(max(low, read_end), high, Kind.RELEASE)


def runs(offsets: Offsets, kinds: Types) -> Iterator[Acknowledgement]:
    """Yield ascending offsets with their kinds as runs without a break."""
    if len(offsets):
        breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(kinds) != 0)) + 1
        for begin, end in pairwise((0, *breaks.tolist(), len(offsets))):
            yield Acknowledgement(int(offsets[begin]), int(offsets[end - 1]), Kind(kinds[begin]))


class Deliveries:
    """The deliveries that are not wholly acknowledged, the oldest first."""

    def __init__(self) -> None:
        self._held: list[Delivery] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, delivery: Delivery) -> None:
        """Hold these, until each of them is taken."""
        self._held.append(delivery)

    @property
    def leases(self) -> set[Lease]:
        return {each.lease for each in self._held}

    @property
    def undecided(self) -> int:
        """How many records the program has yet to decide on, without those that it has renewed."""
        return sum(int(np.count_nonzero(each.kinds == Kind.UNDECIDED)) for each in self._held)

    def decide_all(self, kind: Kind) -> None:
        """Decide all that are undecided."""
        for each in self._held:
            each.kinds[each.kinds == Kind.UNDECIDED] = kind

    def decide(self, tp: TopicPartition, offsets: Offsets, kind: Kind) -> None:
        """Decide these records, in any order; until they are taken, a later decision replaces an earlier one.

        Raises: InvalidRequestError: one is not held. Nothing is decided then.
        """
        places, left = [], np.unique(offsets)
        for each in reversed(self._held):  # the last delivery of a record is the one that counts
            if each.tp == tp and len(left):
                found = np.isin(each.offsets, left, assume_unique=True)
                places.append((each, found))
                left = np.setdiff1d(left, each.offsets[found], assume_unique=True)
        if len(left):
            raise InvalidRequestError(
                f"{tp} offset {left[0]} is not held: it was not polled here, or it was acknowledged before"
            )
        for each, found in places:
            each.kinds[found] = kind

    def take(self) -> list[Due]:
        """Return all that is decided, to be sent; renewed records stay held."""
        due: list[Due] = []
        for each in self._held:
            is_decided = each.kinds > Kind.GAP
            if is_decided.any():
                said = sorted((*runs(each.offsets[is_decided], each.kinds[is_decided]), *each.gaps))
                until_s = float(each.until_s[is_decided].min())
                due.append(Due(each.tp, each.topic_id, each.lease, tuple(said), until_s))
                each.gaps = ()
                each.kinds[each.kinds == Kind.RENEW] = Kind.RENEWED
                stays = each.kinds < Kind.GAP
                each.offsets, each.kinds, each.until_s = each.offsets[stays], each.kinds[stays], each.until_s[stays]
        self._held = [each for each in self._held if len(each.offsets)]
        return due

    def renewed(self, due: Due, until_s: float) -> None:
        """Note that the brokers have renewed the locks that these ask for."""
        for each in self._held:
            if (each.tp, each.lease) == (due.tp, due.lease):
                for first, last, kind in due.acknowledgements:
                    if kind is Kind.RENEW:
                        each.until_s[(first <= each.offsets) & (each.offsets <= last)] = until_s


def merged(due: Iterable[Due]) -> dict[SharePartition, tuple[Acknowledgement, ...]]:
    """Return the acknowledgements of each partition in the order of their offsets, as brokers demand.

    If an offset is named twice, the first stands.
    """
    found: dict[SharePartition, list[Acknowledgement]] = {}
    for each in due:
        found.setdefault(each.partition, []).extend(each.acknowledgements)
    return {partition: tuple(_ascending(said)) for partition, said in found.items()}


def _ascending(said: list[Acknowledgement]) -> Iterator[Acknowledgement]:
    end = -1
    for each in sorted(said, key=lambda one: one.first):
        if each.last >= end:
            yield each._replace(first=max(each.first, end))
            end = each.last + 1
