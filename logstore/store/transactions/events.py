"""The effects of the events in the journal of transactions, and the snapshot event that replaces all earlier ones.

`applied` is a pure fold. An event about something forgotten does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from logstore.store.transactions.state import Decision, Event, Name, State, TransactionAttempt, marked_from_json

# A run that was superseded is refused; of so many the last ones are remembered.
SUPERSEDED_RUNS_MAX = 16
# For who comes to write and is refused.
REASONS_MAX = 32
# Tasks that come when their driver has ended the batch are refused: those of so many runs.
ENDED_RUNS_MAX = 64


def applied(state: State, events: Iterable[Event]) -> State:
    for kind, *facts in events:
        state = _APPLY[kind](state, *facts)
    return state


def _open(state: State, body: Mapping[str, Any]) -> State:
    attempt = TransactionAttempt.from_json(body)
    known = state.names.get(attempt.name)
    if known is None:
        known = Name(run=attempt.run)
    elif known.run != attempt.run:
        known = replace(known, run=attempt.run, replaced=(*known.replaced, known.run)[-SUPERSEDED_RUNS_MAX:])
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


def _prepared(state: State, producer_id: int, epoch: int, now_ms: int, up_ms: int = -1) -> State:
    return _changed(state, producer_id, epoch, prepared=True, seen_ms=now_ms, up_ms=up_ms)


def _epoch(state: State, producer_id: int, epoch: int) -> State:
    return replace(state, epochs={**state.epochs, producer_id: epoch})


def _over(state: State, run: str) -> State:
    return replace(state, ended=(*state.ended, run)[-ENDED_RUNS_MAX:])


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
        has_driver = any(a.owner.driver for a in state.winners(decision))
        return _over(state, decision.run) if has_driver else state
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
    """A decision whose markers are on disk."""
    decisions = dict(state.decisions)
    decision = decisions.pop((name, batch_id), None)
    if decision is None:
        return state
    attempts = {p: a for p, a in state.attempts.items() if p not in decision.winners}
    return _without_idle_name(replace(state, attempts=attempts, decisions=decisions), name)


def _gone(state: State, producer_id: int, epoch: int) -> State:
    attempts = dict(state.attempts)
    attempt = attempts.pop((producer_id, epoch), None)
    if attempt is None:
        return state
    reasons = dict([*state.reasons.items(), (attempt.producer, attempt.aborted)][-REASONS_MAX:])
    return _without_idle_name(replace(state, attempts=attempts, reasons=reasons), attempt.name)


def _without_idle_name(state: State, name: str) -> State:
    """Forget a name that is used once."""
    known = state.names.get(name)
    used = any(a.name == name for a in state.attempts.values()) or any(n == name for n, _ in state.decisions)
    if known is None or known.last or used:
        return state
    return replace(state, names={n: k for n, k in state.names.items() if n != name})


def _whole(_state: State, body: Mapping[str, Any]) -> State:
    names = {
        name: Name(
            run=known["run"],
            replaced=tuple(known["superseded"]),
            last=Decision.from_json(known["last"]) if known["last"] else None,
        )
        for name, known in body["names"].items()
    }
    attempts = [TransactionAttempt.from_json(a) for a in body["attempts"]]
    decisions = [Decision.from_json(d) for d in body["decisions"]]
    return State(
        names=names,
        attempts={a.producer: a for a in attempts},
        decisions={d.batch: d for d in decisions},
        epochs=dict(body["epochs"]),
        reasons={(producer_id, epoch): reason for producer_id, epoch, reason in body["reasons"]},
        decided=body["decided"],
        ended=tuple(body.get("ended", ())),
    )


def snapshot(state: State) -> Event:
    """The event that replaces all before it."""
    names = {
        name: {
            "run": known.run,
            "superseded": list(known.replaced),
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
            "ended": list(state.ended),
        },
    ]


_APPLY: dict[str, Any] = {
    "open": _open,
    "extend": _extend,
    "prepared": _prepared,
    "over": _over,
    "epoch": _epoch,
    "abort": _abort,
    "decide": _decide,
    "durable": _durable,
    "marked": _marked,
    "forget": _forget,
    "gone": _gone,
    "state": _whole,
}


def unmarked(state: State) -> State:
    """The same, with all markers to be written again: a loss of power may have taken them."""
    decisions = {batch: replace(d, marked=None) for batch, d in state.decisions.items()}
    return replace(state, decisions=decisions)
