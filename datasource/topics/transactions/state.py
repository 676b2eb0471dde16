"""The state of the name that batches are written under: its run, and its last decision. Values in, values out.

A *name* is that of a query, or `txnId`. A *run* is one life of the program that writes under it. An *attempt* is the
transaction of one task attempt. The topic of decisions keeps the last state of each name, by its name as key.

Transactional ids are used again, so that coordinators keep few of them. Those of an attempt name the run, modulo
RUN_SLOTS, and the batch, modulo 2: nobody uses those of the last decision while it may have to be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from logstore.errors import PylogError, TransactionAbortedError
from logstore.store.transactions.state import Content, check_same, is_replay, replaced

RUN_SLOTS = 16
OLDER_RUNS = 7  # whose leftovers a run ends; with these, one that was superseded can hit none of the next eight
REPLACED_RUNS_MAX = 32  # a run that was superseded is refused; of so many the last ones are remembered
LEASED = "~"  # begins the names of batch writes that were given none
FREE_NAMES_MIN = 16
ID_PREFIX = "pylog-sink"


class UnknownOutcomeError(PylogError):
    """A batch is decided, and of some of its transactions nobody knows whether they were committed."""

    def __init__(self, name: str, decision: Decision, lost: Sequence[Attempt]) -> None:
        rows = ", ".join(f"{where} ({count:,} rows)" for where, count in sorted(decision.rows.items()))
        super().__init__(
            f"batch {decision.batch_id} of {name!r} is decided, but {len(lost)} of its {len(decision.attempts)} "
            f"transactions cannot be committed any more ({lost[0].id}): they timed out or were aborted. Rows may be "
            f"missing in {rows}. Nothing more is written under this name: compare these partitions with the input, "
            "then go on under a new checkpointLocation or txnId",
        )


class Attempt(NamedTuple):
    """A transaction: who has the id and another pair can neither add to it nor end it."""

    id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch that is committed. `rows` counts them per partition ("topic-0"); `attempts` until it `is_finished`."""

    batch_id: int
    content: Content
    origin: str = ""
    rows: Mapping[str, int]
    attempts: tuple[Attempt, ...]
    is_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NameState:
    """The run that may write under a name ("": none), the process that drives it, how many there were, the last batch.

    A batch of a run is decided only when the one before is finished.
    """

    run: str = ""
    driver: str = ""
    number: int = 0
    replaced: tuple[str, ...] = ()
    last: Decision | None = None


def driver_id(name: str) -> str:
    """The transactional id under which the state of a name is written."""
    return f"{ID_PREFIX}/driver/{name}"


def attempt_id(name: str, number: int, batch_id: int, task: tuple[int, int]) -> str:
    """The transactional id of a task (its partition, and the number of its attempt) in a batch of a run."""
    return f"{_ids_of(name)}{number % RUN_SLOTS}/{batch_id % 2}/{task[0]}/{task[1]}"


def names_in(ids: Collection[str]) -> set[str]:
    """Return the names under which the drivers and tasks wrote that have these transactional ids."""
    driver, task = driver_id(""), f"{ID_PREFIX}/task/"
    names = {id.removeprefix(driver) for id in ids if id.startswith(driver)}
    return names | {id.removeprefix(task).rsplit("/", 4)[0] for id in ids if id.startswith(task)}


def _ids_of(name: str) -> str:
    return f"{ID_PREFIX}/task/{name}/"


def is_leftover(id: str, name: str, number: int) -> bool:
    """Whether an id is of this name, and of this run or one of those before that it cleans up after."""
    head, _, tail = id.rpartition(_ids_of(name))
    parts = tail.split("/")
    if head or len(parts) != 4 or not parts[0].isdecimal():
        return False
    return (number - int(parts[0])) % RUN_SLOTS <= min(OLDER_RUNS, number)


def taken_over(state: NameState, name: str, run: str, driver: str) -> NameState | None:
    """The state in which this run may write; None: it may. The last decision must be finished before that is stored.

    Raises: TransactionAbortedError: another run has superseded this one.
    """
    if run == state.run:
        return None
    _check_wanted(state, name, run)
    if is_leased(name) and state.run:
        raise _aborted(f"{name!r} is taken")
    before = (*state.replaced, state.run)[-REPLACED_RUNS_MAX:] if state.run else state.replaced
    return NameState(run=run, driver=driver, number=state.number + 1, replaced=before, last=_finished(state.last))


def is_decided(state: NameState, name: str, batch_id: int) -> bool:
    """Whether the batch is committed. Raises: BatchConflictError: a later one is."""
    return state.last is not None and is_replay(name, batch_id, state.last.batch_id)


def check_begun(state: NameState, name: str, run: str, batch_id: int) -> None:
    """Raise TransactionAbortedError unless an attempt of this batch may write; looked at after it has its id."""
    if state.run != run:
        _check_wanted(state, name, run)
        raise _aborted(f"the driver has ended the batch of {name!r}")
    if is_decided(state, name, batch_id):
        raise _aborted(f"batch {batch_id} of {name!r} was committed without it")


def decided(state: NameState, name: str, run: str, wanted: Decision) -> NameState | None:
    """The state with this decision; None: it was made before, with this content or from this origin.

    Raises: TransactionAbortedError: another run has superseded this one; BatchConflictError.
    """
    if is_decided(state, name, wanted.batch_id):
        assert state.last is not None
        check_same(
            name,
            wanted.batch_id,
            (state.last.content, state.last.origin),
            (wanted.content, wanted.origin),
        )
        return None
    if state.run != run:
        _check_wanted(state, name, run)
        raise _aborted(f"no run of {name!r} is open")
    return replace(state, last=wanted)


def finished(state: NameState, batch_id: int) -> NameState | None:
    """The state that says that this decision is carried out; None: it does."""
    if state.last is None or state.last.batch_id != batch_id or state.last.is_finished:
        return None
    return replace(state, last=_finished(state.last))


def ended(state: NameState, name: str) -> NameState:
    """The state without its run, which may write no more. A leased name is free then, and has no last batch."""
    before = (*state.replaced, state.run)[-REPLACED_RUNS_MAX:] if state.run else state.replaced
    last = None if is_leased(name) else _finished(state.last)
    return NameState(number=state.number, replaced=before, last=last)


def is_leased(name: str) -> bool:
    """Whether it is the name of a batch write that was given none."""
    return name.startswith(LEASED)


def free_names(states: Mapping[str, NameState]) -> list[str]:
    """Names for a batch write that was given none: more than are taken."""
    taken = {name for name, state in states.items() if is_leased(name) and state.run}
    count = max(FREE_NAMES_MIN, 2 * len(taken))
    return [name for k in range(count) if (name := f"{LEASED}{k}") not in taken]


def _check_wanted(state: NameState, name: str, run: str) -> None:
    if run in state.replaced:
        by = f" by run {state.run}" if state.run else ""
        raise _aborted(f"{replaced(name)}{by}")


def _finished(last: Decision | None) -> Decision | None:
    return replace(last, attempts=(), rows={}, is_finished=True) if last else None


def _aborted(reason: str) -> TransactionAbortedError:
    return TransactionAbortedError(-1, -1, reason)


def value_of(state: NameState) -> bytes:
    """The record that stands for a state."""
    last = state.last
    body = {
        "version": 1,
        "run": state.run,
        "driver": state.driver,
        "number": state.number,
        "replaced": state.replaced,
        "last": last
        and {
            "batch": last.batch_id,
            "content": (last.content.rows, last.content.digest),
            "origin": last.origin,
            "rows": dict(last.rows),
            "attempts": last.attempts,
            "finished": last.is_finished,
        },
    }
    return json.dumps(body, separators=(",", ":")).encode()


def read_value(value: bytes) -> NameState:
    """The state of a record."""
    body = json.loads(value)
    last = body["last"]
    return NameState(
        run=body["run"],
        driver=body["driver"],
        number=body["number"],
        replaced=tuple(body["replaced"]),
        last=last
        and Decision(
            batch_id=last["batch"],
            content=Content(rows=last["content"][0], digest=last["content"][1]),
            origin=last["origin"],
            rows=last["rows"],
            attempts=tuple(Attempt(*each) for each in last["attempts"]),
            is_finished=last["finished"],
        ),
    )
