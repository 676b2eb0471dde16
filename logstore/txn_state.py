"""What is known of transactions: who may write what, what was decided. Values in, values out.

An *attempt* is one writer's part of a batch, with a producer id and epoch of its own; a *batch* is what becomes
visible as a whole, under (transaction name, batch id); a *run* is one life of the program that writes the batches of
a name. The life of an attempt::

    open ──────────► decided: committed ──► markers written ──► forgotten, when they are on disk
      │   (prepared)
      └────────────► aborted ─────────────► markers written ──► forgotten

Invariants: a pair (producer id, epoch) is given once, ever; an id has at most one attempt here; a batch is decided at
most once, and when it is, every attempt of its name that is not among the winners is aborted by the same event.

Events are JSON lists, kind first; `applied` is the only place that knows what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from logstore.errors import BatchConflictError, TransactionAbortedError

# As Kafka does, an id is retired before its last epoch, which is kept for fencing.
PRODUCER_EPOCH_MAX = 2**15 - 2
# A run that was superseded is refused; of so many the last ones are remembered.
SUPERSEDED_RUNS_MAX = 16

# For who comes to write and is refused.
REASONS_MAX = 32

Event = list[Any]
Outcome = Literal["committed", "aborted"]
Producer = tuple[int, int]  # id, epoch
Partition = tuple[str, str, int]  # topic, topic id, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose life an attempt hangs on, as far as another process can tell.

    `host` is what must be the same to tell; `holder` names a lock that the writing process holds; `driver` is the
    process that decides, after the writer is done ("": the writer itself).
    """

    host: str = ""
    holder: str = ""
    driver: str = ""
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One writer's part of a batch. `aborted` says why it was; "": it was not."""

    name: str
    batch_id: int
    run: str
    task: str
    producer_id: int
    epoch: int
    partitions: tuple[Partition, ...]
    owner: Owner
    seen_ms: int
    prepared: bool = False
    aborted: str = ""

    @property
    def producer(self) -> Producer:
        """Its identity."""
        return self.producer_id, self.epoch

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Attempt:
        """What `to_json` made."""
        return cls(
            **{
                **body,
                "owner": Owner(**body["owner"]),
                "partitions": tuple((t, i, p) for t, i, p in body["partitions"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a batch holds, whatever the order and the grouping of its rows: how many, and the sum of their hashes."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(rows=self.rows + other.rows, digest=(self.digest + other.digest) & (2**64 - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch that is committed. Readers act on it when it is `durable`.

    `marked`: where the log ended, per partition, after the markers; None: they are not all written.
    `kept`: it is remembered as its name's last batch, to tell a replay from something new.
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
        """Its identity."""
        return self.name, self.batch_id

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        marked = (
            None if self.marked is None else [[*partition, end] for partition, end in self.marked.items()]
        )
        return body | {"content": asdict(self.content), "marked": marked}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Decision:
        """What `to_json` made."""
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
    """What is known of a transaction name: its present run, those that it replaced, its last committed batch."""

    run: str
    superseded: tuple[str, ...] = ()
    last: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything. `decisions` are those that are not forgotten yet; `decided` counts all that ever became durable."""

    names: Mapping[str, Name] = field(default_factory=dict)
    attempts: Mapping[Producer, Attempt] = field(default_factory=dict)
    decisions: Mapping[tuple[str, int], Decision] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)  # the last epoch that each id got
    reasons: Mapping[Producer, str] = field(
        default_factory=dict
    )  # of the last that were aborted and are gone
    decided: int = 0

    # ------------------------------------------------------------- questions

    def of_name(self, name: str) -> list[Attempt]:
        """The attempts of a name that are neither aborted nor decided."""
        return [a for a in self.attempts.values() if a.name == name and self.is_open(a.producer)]

    def is_open(self, producer: Producer) -> bool:
        """May this attempt still write?"""
        attempt = self.attempts.get(producer)
        return attempt is not None and not attempt.aborted and not self._winner(attempt)

    def _winner(self, attempt: Attempt) -> Decision | None:
        decision = self.decisions.get((attempt.name, attempt.batch_id))
        return decision if decision and attempt.producer in decision.winners else None

    def aborted(self) -> list[Attempt]:
        """The attempts that wait for their ABORT markers."""
        return [a for a in self.attempts.values() if a.aborted]

    def winners(self, decision: Decision) -> list[Attempt]:
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

    # ------------------------------------------------------------- decisions

    def free_producer(self) -> Producer:
        """An id that nobody uses, with its next epoch; a new id where there is none."""
        used = {producer_id for producer_id, _ in self.attempts}
        for producer_id, epoch in sorted(self.epochs.items()):
            if producer_id not in used and epoch < PRODUCER_EPOCH_MAX:
                return producer_id, epoch + 1
        return max(self.epochs, default=-1) + 1, 0

    def to_register(self, attempt: Attempt) -> tuple[Attempt, list[Event]]:
        """The attempt with the id and epoch that it gets, and what registers it and ends what it supersedes.

        A new run of a name ends the attempts of the run before it.

        Raises: TransactionAbortedError: its run was superseded by another, or its batch is committed.
        """
        if self.replayed(attempt.name, attempt.batch_id):
            reason = f"another run has committed batch {attempt.batch_id} of {attempt.name!r} meanwhile"
            raise TransactionAbortedError(-1, -1, reason)
        known = self.names.get(attempt.name)
        if known and attempt.run in known.superseded:
            raise TransactionAbortedError(-1, -1, f"{superseded(attempt.name)} by run {known.run}")
        reason = f"{superseded(attempt.name)} by run {attempt.run}"
        events: list[Event] = [
            ["abort", *old.producer, reason] for old in self.of_name(attempt.name) if old.run != attempt.run
        ]
        producer_id, epoch = self.free_producer()
        placed = replace(attempt, producer_id=producer_id, epoch=epoch)
        return placed, [*events, ["open", placed.to_json()]]

    def replayed(self, name: str, batch_id: int) -> Decision | None:
        """The decision of a batch that was committed before; None: this batch is new.

        Raises: BatchConflictError: later batches were committed under this name.
        """
        last = self.last_of(name)
        if last is None or batch_id > last.batch_id:
            return None
        if batch_id < last.batch_id:
            raise BatchConflictError(
                f"batch {batch_id} of {name!r} comes after batch {last.batch_id}, which is committed: was the "
                "checkpoint restored from an older copy, or the name used by another query? Nothing of it is "
                "written, because it cannot be told what of it is here already. To write it all the same, take a "
                "new checkpointLocation or another txnId",
                name=name,
                batch_id=batch_id,
            )
        return last

    def to_decide(self, wanted: Decision) -> list[Event]:
        """What commits a batch; nothing if it is committed already, with the same content.

        Raises: BatchConflictError: it is, with another content, or a later one is; TransactionAbortedError: one of
        its attempts was aborted.
        """
        known = self.replayed(wanted.name, wanted.batch_id)
        if known is None:
            known = self.decisions.get(wanted.batch)
        if known is not None:
            _check_same(known, wanted)
            return []
        for producer in wanted.winners:
            self.check_open(producer)
        return [["decide", wanted.to_json()]]

    def to_abort(self, attempts: Iterable[Attempt], reason: str) -> list[Event]:
        """What aborts these attempts, those excepted that have ended."""
        return [["abort", *a.producer, reason] for a in attempts if self.is_open(a.producer)]


def superseded(name: str) -> str:
    """Begin of a reason."""
    return f"another writer has taken over {name!r}: superseded"


def _check_same(known: Decision, new: Decision) -> None:
    if known.content == new.content or (known.origin and known.origin == new.origin):
        return
    raise BatchConflictError(
        f"batch {new.batch_id} of {new.name!r} is committed already, with another content ({known.content.rows:,} "
        f"rows; now {new.content.rows:,}): was the checkpoint restored from an older copy, the name used by another "
        "query, or is the query not deterministic? Nothing of it is visible. To write it all the same, take a new "
        "checkpointLocation or another txnId",
        name=new.name,
        batch_id=new.batch_id,
    )


def unmarked(state: State) -> State:
    """The same, with all markers to be written again: a power failure may have taken those that were not flushed."""
    decisions = {batch: replace(d, marked=None) for batch, d in state.decisions.items()}
    return replace(state, decisions=decisions)


# --------------------------------------------------------------------- events


def applied(state: State, events: Iterable[Event]) -> State:
    """Return the state after these events."""
    for kind, *facts in events:
        state = _APPLY[kind](state, *facts)
    return state


def _open(state: State, body: Mapping[str, Any]) -> State:
    attempt = Attempt.from_json(body)
    known = state.names.get(attempt.name)
    if known is None:
        known = Name(run=attempt.run)
    elif known.run != attempt.run:
        known = replace(
            known, run=attempt.run, superseded=(*known.superseded, known.run)[-SUPERSEDED_RUNS_MAX:]
        )
    return replace(
        state,
        names={**state.names, attempt.name: known},
        attempts={**state.attempts, attempt.producer: attempt},
        epochs={**state.epochs, attempt.producer_id: attempt.epoch},
    )


def _changed(state: State, producer_id: int, epoch: int, **changes: Any) -> State:
    producer = producer_id, epoch
    attempt = state.attempts.get(producer)
    if attempt is None:
        return state
    return replace(state, attempts={**state.attempts, producer: replace(attempt, **changes)})


def _extend(state: State, producer_id: int, epoch: int, more: Iterable[Any]) -> State:
    attempt = state.attempts.get((producer_id, epoch))
    known = attempt.partitions if attempt else ()
    added = tuple((topic, topic_id, partition) for topic, topic_id, partition in more)
    return _changed(state, producer_id, epoch, partitions=tuple(dict.fromkeys(known + added)))


def _prepared(state: State, producer_id: int, epoch: int, now_ms: int) -> State:
    return _changed(state, producer_id, epoch, prepared=True, seen_ms=now_ms)


def _abort(state: State, producer_id: int, epoch: int, reason: str) -> State:
    return _changed(state, producer_id, epoch, aborted=reason)


def _decide(state: State, body: Mapping[str, Any]) -> State:
    decision = Decision.from_json(body)
    reason = f"batch {decision.batch_id} was committed without it"
    losers = [
        a
        for a in state.of_name(decision.name)
        if a.batch_id <= decision.batch_id and a.producer not in decision.winners
    ]
    state = replace(state, decisions={**state.decisions, decision.batch: decision})
    for loser in losers:
        state = _abort(state, *loser.producer, reason)
    if not decision.kept:
        return state
    known = state.names.get(decision.name) or Name(run=decision.run)
    brief = replace(decision, winners=(), marked=None)
    return replace(state, names={**state.names, decision.name: replace(known, last=brief)})


def _durable(state: State, name: str, batch_id: int) -> State:
    state = _with_decision(state, name, batch_id, durable=True)
    return replace(state, decided=state.decided + 1)


def _marked(state: State, name: str, batch_id: int, ends: Iterable[Any]) -> State:
    return _with_decision(state, name, batch_id, marked=marked_from_json(ends))


def _with_decision(state: State, name: str, batch_id: int, **changes: Any) -> State:
    decision = state.decisions.get((name, batch_id))
    if decision is None:
        return state
    changed = replace(decision, **changes)
    return replace(state, decisions={**state.decisions, decision.batch: changed})


def _forget(state: State, name: str, batch_id: int) -> State:
    """A decision whose markers are on disk: the log itself says it now."""
    decisions = dict(state.decisions)
    decision = decisions.pop((name, batch_id), None)
    if decision is None:
        return state
    attempts = {p: a for p, a in state.attempts.items() if p not in decision.winners}
    return _without_idle_name(replace(state, attempts=attempts, decisions=decisions), name)


def _gone(state: State, producer_id: int, epoch: int) -> State:
    """An aborted attempt whose markers are written."""
    attempts = dict(state.attempts)
    attempt = attempts.pop((producer_id, epoch), None)
    if attempt is None:
        return state
    reasons = dict([*state.reasons.items(), (attempt.producer, attempt.aborted)][-REASONS_MAX:])
    return _without_idle_name(replace(state, attempts=attempts, reasons=reasons), attempt.name)


def _without_idle_name(state: State, name: str) -> State:
    """Names that are used once leave nothing behind."""
    known = state.names.get(name)
    used = any(a.name == name for a in state.attempts.values()) or any(n == name for n, _ in state.decisions)
    if known is None or known.last or used:
        return state
    return replace(state, names={n: k for n, k in state.names.items() if n != name})


def _whole(_state: State, body: Mapping[str, Any]) -> State:
    """A snapshot: everything so far."""
    names = {
        name: Name(
            run=known["run"],
            superseded=tuple(known["superseded"]),
            last=Decision.from_json(known["last"]) if known["last"] else None,
        )
        for name, known in body["names"].items()
    }
    attempts = [Attempt.from_json(a) for a in body["attempts"]]
    decisions = [Decision.from_json(d) for d in body["decisions"]]
    return State(
        names=names,
        attempts={a.producer: a for a in attempts},
        decisions={d.batch: d for d in decisions},
        epochs=dict(body["epochs"]),
        reasons={(producer_id, epoch): reason for producer_id, epoch, reason in body["reasons"]},
        decided=body["decided"],
    )


def snapshot(state: State) -> Event:
    """The event that stands for everything so far."""
    names = {
        name: {
            "run": known.run,
            "superseded": list(known.superseded),
            "last": known.last.to_json() if known.last else None,
        }
        for name, known in state.names.items()
    }
    return [
        "state",
        {
            "names": names,
            "attempts": [a.to_json() for a in state.attempts.values()],
            "decisions": [d.to_json() for d in state.decisions.values()],
            "epochs": sorted(state.epochs.items()),
            "reasons": [[*producer, reason] for producer, reason in state.reasons.items()],
            "decided": state.decided,
        },
    ]


_APPLY: dict[str, Any] = {
    "open": _open,
    "extend": _extend,
    "prepared": _prepared,
    "abort": _abort,
    "decide": _decide,
    "durable": _durable,
    "marked": _marked,
    "forget": _forget,
    "gone": _gone,
    "state": _whole,
}
