"""The state of transactions: writers and decisions. Values in, values out.

An *attempt* is one writer's part of a batch, with a producer id and epoch of its own; a *batch* is what becomes
visible as a whole, under (transaction name, batch id); a *run* is one life of the program that writes the batches of
a name. The life of an attempt::

    open ──────────► decided: committed ──► markers written ──► forgotten, when they are on disk
      │   (prepared)
      └────────────► aborted ─────────────► markers written ──► forgotten

Invariants: a pair (producer id, epoch) is given once, ever; an id has at most one attempt here; a batch is decided at
most once, and when it is, every attempt of its name that is not among the winners is aborted by the same event.

Events are JSON lists, kind first; `transactions.events` knows what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from logstore.errors import BatchConflictError, TransactionAbortedError
from logstore.log.isolation import Outcome

# An id is retired before its last epoch, which is kept for fencing, as in Kafka.
PRODUCER_EPOCH_MAX = 2**15 - 2

Event = list[Any]
Producer = tuple[int, int]  # id, epoch
Partition = tuple[str, str, int]  # topic, topic id, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOwner:
    """The processes that an attempt depends on.

    Only a process on the same `host` can tell whether they live. `holder` names a lock that the writing process holds;
    `driver` is the process that decides after the writer is done ("": the writer itself). `timeout_ms`: after this time
    without a running task the batch counts as given up.
    """

    host: str = ""
    holder: str = ""
    driver: str = ""
    timeout_ms: int = 0


_OWNER = frozenset(f.name for f in fields(TransactionOwner))  # journals of earlier versions have others


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAttempt:
    """One writer's part of a batch. `aborted`: the reason why it was; "": it was not.

    `seen_ms` is the time of its last sign, when its machine had been up for `up_ms` (-1: not known).
    """

    name: str
    batch_id: int
    run: str
    task: str
    producer_id: int
    epoch: int
    partitions: tuple[Partition, ...]
    owner: TransactionOwner
    seen_ms: int
    up_ms: int = -1
    prepared: bool = False
    aborted: str = ""

    @property
    def producer(self) -> Producer:
        return self.producer_id, self.epoch

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TransactionAttempt:
        return cls(
            **{
                **body,
                "owner": TransactionOwner(**{f: v for f, v in body["owner"].items() if f in _OWNER}),
                "partitions": tuple((t, i, p) for t, i, p in body["partitions"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The number of rows of a batch, and the sum of their hashes, in whatever order and grouping."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(rows=self.rows + other.rows, digest=(self.digest + other.digest) & (2**64 - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch that is committed. Readers act on it when it is `durable`.

    `marked`: where the log ended, per partition, after the markers; None: they are not all written. `kept`: it is
    remembered as its name's last batch, to tell a replay from something new.
    """

    name: str
    batch_id: int
    run: str
    content: Content
    decided_ms: int
    winners: tuple[Producer, ...]
    kept: bool
    origin: str = ""
    durable: bool = False
    marked: Mapping[Partition, int] | None = None

    @property
    def batch(self) -> tuple[str, int]:
        return self.name, self.batch_id

    def to_json(self) -> dict[str, Any]:
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        marked = None if self.marked is None else [[*partition, end] for partition, end in self.marked.items()]
        return body | {"content": asdict(self.content), "marked": marked}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Decision:
        return cls(
            **{
                **body,
                "content": Content(**body["content"]),
                "winners": tuple((p, e) for p, e in body["winners"]),
                "marked": None if body["marked"] is None else marked_from_json(body["marked"]),
            }
        )


def marked_from_json(body: Iterable[Any]) -> dict[Partition, int]:
    """Partitions with the end of their markers."""
    return {(topic, topic_id, partition): end for topic, topic_id, partition, end in body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A transaction name: its present run, the runs that it replaced, its last committed batch."""

    run: str
    replaced: tuple[str, ...] = ()
    last: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All transactions. `decisions` are those that are not forgotten; `decided` counts all that ever became durable.

    `ended` are the last runs that their drivers ended.
    """

    names: Mapping[str, Name] = field(default_factory=dict)
    attempts: Mapping[Producer, TransactionAttempt] = field(default_factory=dict)
    decisions: Mapping[tuple[str, int], Decision] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)  # the last epoch that each id got
    # Why the last transactions that are gone were aborted.
    reasons: Mapping[Producer, str] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    decided: int = 0

    def of_name(self, name: str) -> list[TransactionAttempt]:
        """The attempts of a name that are neither aborted nor decided."""
        return [a for a in self.attempts.values() if a.name == name and self.is_open(a.producer)]

    def is_open(self, producer: Producer) -> bool:
        attempt = self.attempts.get(producer)
        return attempt is not None and not attempt.aborted and not self._winner(attempt)

    def _winner(self, attempt: TransactionAttempt) -> Decision | None:
        decision = self.decisions.get((attempt.name, attempt.batch_id))
        return decision if decision and attempt.producer in decision.winners else None

    def aborted(self) -> list[TransactionAttempt]:
        """The attempts that wait for their ABORT markers."""
        return [a for a in self.attempts.values() if a.aborted]

    def winners(self, decision: Decision) -> list[TransactionAttempt]:
        """The attempts that a decision commits."""
        return [self.attempts[p] for p in decision.winners if p in self.attempts]

    def outcomes(self) -> dict[Producer, Outcome]:
        """How each attempt ended, where that is known."""
        found: dict[Producer, Outcome] = {}
        for producer, attempt in self.attempts.items():
            if attempt.aborted:
                found[producer] = "aborted"
            elif (decision := self._winner(attempt)) and decision.durable:
                found[producer] = "committed"
        return found

    def last_of(self, name: str) -> Decision | None:
        """The last committed batch of a name, as far as it is remembered."""
        known = self.names.get(name)
        return known.last if known else None

    def check_open(self, producer: Producer) -> None:
        """Raise TransactionAbortedError unless this attempt may still write."""
        if not self.is_open(producer):
            attempt = self.attempts.get(producer)
            reason = (attempt and attempt.aborted) or self.reasons.get(producer) or "it has ended"
            raise TransactionAbortedError(*producer, reason)

    def free_producer(self) -> Producer:
        """An id that nobody uses, with its next epoch; a new id where there is none."""
        used = {producer_id for producer_id, _ in self.attempts}
        for producer_id, epoch in sorted(self.epochs.items()):
            if producer_id not in used and epoch < PRODUCER_EPOCH_MAX:
                return producer_id, epoch + 1
        return max(self.epochs, default=-1) + 1, 0

    def to_register(self, attempt: TransactionAttempt) -> tuple[TransactionAttempt, list[Event]]:
        """The attempt with its id and epoch, and the events that register it and abort those of an earlier run.

        Raises: TransactionAbortedError: its run was superseded by another or ended, or its batch is committed.
        """
        if self.replayed(attempt.name, attempt.batch_id):
            reason = f"another run has committed batch {attempt.batch_id} of {attempt.name!r} meanwhile"
            raise TransactionAbortedError(-1, -1, reason)
        known = self.names.get(attempt.name)
        if attempt.run in self.ended:
            raise TransactionAbortedError(-1, -1, f"the driver has ended the batch of {attempt.name!r}")
        if known and attempt.run in known.replaced:
            raise TransactionAbortedError(-1, -1, f"{replaced(attempt.name)} by run {known.run}")
        reason = f"{replaced(attempt.name)} by run {attempt.run}"
        events: list[Event] = [
            ["abort", *old.producer, reason] for old in self.of_name(attempt.name) if old.run != attempt.run
        ]
        producer_id, epoch = self.free_producer()
        placed = replace(attempt, producer_id=producer_id, epoch=epoch)
        return placed, [*events, ["open", placed.to_json()]]

    def replayed(self, name: str, batch_id: int) -> Decision | None:
        """The decision of a batch that was committed before; None: this batch is new. Raises: as `is_replay`."""
        last = self.last_of(name)
        return last if last is not None and is_replay(name, batch_id, last.batch_id) else None

    def to_decide(self, wanted: Decision) -> list[Event]:
        """The events that commit a batch; none if it is committed already, with the same content.

        Raises: BatchConflictError: it is, with another content, or a later one is; TransactionAbortedError: one of its
        attempts was aborted.
        """
        known = self.replayed(wanted.name, wanted.batch_id)
        if known is None:
            known = self.decisions.get(wanted.batch)
        if known is not None:
            check_same(wanted.name, wanted.batch_id, (known.content, known.origin), (wanted.content, wanted.origin))
            return []
        for producer in wanted.winners:
            self.check_open(producer)
        return [["decide", wanted.to_json()]]

    def to_end(self, attempts: Iterable[TransactionAttempt], runs: Iterable[str], reason: str) -> list[Event]:
        """The events that abort these attempts, and refuse later ones of these runs."""
        return [*(["over", run] for run in runs if run not in self.ended), *self.to_abort(attempts, reason)]

    def to_abort(self, attempts: Iterable[TransactionAttempt], reason: str) -> list[Event]:
        """The events that abort those of these attempts that are open."""
        return [["abort", *a.producer, reason] for a in attempts if self.is_open(a.producer)]


def replaced(name: str) -> str:
    return f"another writer has taken over {name!r}: superseded"


def is_replay(name: str, batch_id: int, last: int) -> bool:
    """Whether this is the last committed batch again; else it is a new one.

    Raises: BatchConflictError: later batches were committed under this name.
    """
    if batch_id < last:
        raise BatchConflictError(
            f"batch {batch_id} of {name!r} comes after batch {last}, which is committed: was the "
            "checkpoint restored from an older copy, or the name used by another query? No row of it was "
            "written, because some may be stored already. To write it all the same, use a "
            "new checkpointLocation or another txnId",
            name=name,
            batch_id=batch_id,
        )
    return batch_id == last


def check_same(name: str, batch_id: int, known: tuple[Content, str], new: tuple[Content, str]) -> None:
    """Raise BatchConflictError unless a batch that comes again has the same content, or is of the same origin."""
    if known[0] == new[0] or (known[1] and known[1] == new[1]):
        return
    before, now = known[0].rows, new[0].rows
    how = f"rows: {before:,}, now {now:,}" if before != now else "as many rows, but not the same ones"
    raise BatchConflictError(
        f"batch {batch_id} of {name!r} is committed already, with another content ({how}): was the "
        "checkpoint restored from an older copy, the name used by another query, or is the query not deterministic? "
        "Nothing of it is visible. To write it all the same, take a new checkpointLocation or another txnId",
        name=name,
        batch_id=batch_id,
    )
