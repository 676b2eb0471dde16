"""The machine of a transactional id: `step(transaction, event, now_ms, limits) -> (transaction, effects)`.

Laws:

- A decision is stored before any client learns of it, and before a marker is written; it is never changed.
- Every partition of a transaction gets its marker before the next transaction begins.
- InitProducerId fences every earlier instance: what that was doing is aborted first.
- One change is stored at a time; requests that come meanwhile are answered CONCURRENT_TRANSACTIONS.
- A transaction that is older than its timeout is aborted, and its producer fenced; that of a two-phase commit never is.
- Every request is answered once.

The rules are those of Kafka with KIP-890 and KIP-939. The caller stores the new state before it performs the effects,
in order. A transaction that `is_blank` after a step may be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.state import (
    COMPLETED,
    DECIDED,
    EPOCH_GIVEN_MAX,
    NO_EPOCH,
    NO_ID,
    NO_TIMEOUT_MS,
    Phase,
    Transaction,
    TransactionSettings,
)
from replication.errors import ERRORS_OF_APPENDS, ErrorCode

Step: TypeAlias = tuple[Transaction, tuple[events.Effect, ...]]


class _Draft:
    """A transaction while one event is processed."""

    def __init__(self, transaction: Transaction, now_ms: int, limits: TransactionSettings) -> None:
        self.transaction = transaction
        self.now_ms = now_ms
        self.limits = limits
        self.effects: list[events.Effect] = []

    def answer(self, request: int, body: events.Body) -> None:
        self.effects.append(events.Answer(request, body))

    def store(self, target: Transaction, answer: events.Answer | None = None) -> None:
        target = replace(target, updated_ms=self.now_ms, storing=None)
        self.transaction = replace(self.transaction, storing=target)
        self.effects.append(events.Append(target, answer))

    def go_on(self) -> None:
        """Have the markers of a decided transaction written; complete it if all are."""
        t = self.transaction
        if t.phase not in DECIDED or t.storing is not None:
            return
        if t.unmarked:
            commits = t.phase is Phase.PREPARE_COMMIT
            self.effects.append(events.WriteMarkers(t.producer_id, t.producer_epoch, commits, t.version, t.unmarked))
            return
        has_next = t.next_producer_id != NO_ID
        self.store(
            replace(
                t,
                phase=DECIDED[t.phase],
                partitions=frozenset(),
                producer_id=t.next_producer_id if has_next else t.producer_id,
                producer_epoch=t.next_producer_epoch if has_next else t.producer_epoch,
                previous_producer_id=t.producer_id if t.next_producer_id not in (NO_ID, t.producer_id) else NO_ID,
                next_producer_id=NO_ID,
                next_producer_epoch=NO_EPOCH,
            )
        )


def resume(stored: Transaction, now_ms: int, limits: TransactionSettings) -> Step:
    """Return the transaction as its new coordinator loaded it: what was decided is carried out."""
    draft = _Draft(stored, now_ms, limits)
    draft.go_on()
    return draft.transaction, tuple(draft.effects)


def step(transaction: Transaction, event: events.Event, now_ms: int, limits: TransactionSettings) -> Step:
    draft = _Draft(transaction, now_ms, limits)
    is_refused = transaction.phase is Phase.DEAD and not isinstance(event, events.Stored)
    act = _refuse if is_refused else _ACTS[type(event)]
    act(draft, event)
    return draft.transaction, tuple(draft.effects)


def _refuse(draft: _Draft, event: events.Event) -> None:
    if isinstance(event, events.Initialize | events.Add | events.End):
        answer = {events.Initialize: events.Initialized, events.Add: events.Added, events.End: events.Ended}[
            type(event)
        ]
        draft.answer(event.request, answer(ErrorCode.NOT_COORDINATOR))


def _initialize(draft: _Draft, event: events.Initialize) -> None:
    t, timeout_ms = draft.transaction, NO_TIMEOUT_MS if event.is_two_phase else event.timeout_ms
    error = _initialize_refusal(draft, event)
    if error is not ErrorCode.NONE:
        draft.answer(event.request, events.Initialized(error))
    elif t.phase is Phase.ONGOING and event.keeps_prepared:
        epoch = t.next_producer_epoch if t.is_kept else t.producer_epoch
        is_used_up = epoch >= EPOCH_GIVEN_MAX
        next_id = t.next_producer_id if t.is_kept else t.producer_id
        next_pair = (event.fresh_id, 0) if is_used_up else (next_id, epoch + 1)
        kept = replace(t, next_producer_id=next_pair[0], next_producer_epoch=next_pair[1], timeout_ms=timeout_ms)
        body = events.Initialized(ErrorCode.NONE, *next_pair, t.producer_id, t.producer_epoch)
        draft.store(kept, events.Answer(event.request, body))
    elif t.phase is Phase.ONGOING:
        # It comes again, and finds the transaction aborted.
        _fence(draft, events.Answer(event.request, events.Initialized(ErrorCode.CONCURRENT_TRANSACTIONS)))
    else:
        pair, before = _next_pair(t, event)
        begun = Transaction(
            id=t.id,
            producer_id=pair[0],
            producer_epoch=pair[1],
            timeout_ms=timeout_ms,
            previous_producer_id=before[0] if before[0] != pair[0] else NO_ID,
            previous_producer_epoch=before[1],
            unknown_tags=t.unknown_tags,
        )
        draft.store(begun, events.Answer(event.request, events.Initialized(ErrorCode.NONE, *pair)))


def _next_pair(t: Transaction, event: events.Initialize) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the producer id and epoch that the producer gets, and those that it may name if it repeats itself."""
    current, named = (t.producer_id, t.producer_epoch), (event.producer_id, event.producer_epoch)
    goes_on = event.producer_epoch != NO_EPOCH and t.producer_id != NO_ID
    if goes_on and named != current:
        return current, named  # it repeats itself: the answer was lost
    before = current if goes_on else (NO_ID, NO_EPOCH)
    if t.producer_id == NO_ID or t.producer_epoch >= EPOCH_GIVEN_MAX:
        return (event.fresh_id, 0), before
    return (t.producer_id, t.producer_epoch + 1), before


def _initialize_refusal(draft: _Draft, event: events.Initialize) -> ErrorCode:
    t, limits = draft.transaction, draft.limits
    if (event.is_two_phase or event.keeps_prepared) and not limits.transaction_two_phase_commit_enable:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not event.is_two_phase and not 0 < event.timeout_ms <= limits.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if t.storing is not None or t.phase in DECIDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if event.producer_epoch == NO_EPOCH or t.producer_id == NO_ID:
        return ErrorCode.NONE
    previous_id = t.producer_id if t.previous_producer_id == NO_ID else t.previous_producer_id
    known = {
        (t.producer_id, t.producer_epoch),
        (previous_id, t.previous_producer_epoch),
        (t.next_producer_id, t.next_producer_epoch),
    }
    return ErrorCode.NONE if (event.producer_id, event.producer_epoch) in known else ErrorCode.PRODUCER_FENCED


def _add(draft: _Draft, event: events.Add) -> None:
    t = draft.transaction
    error = _add_refusal(t, event)
    if error is not ErrorCode.NONE:
        draft.answer(event.request, events.Added(error))
    elif event.is_question:
        missing = event.partitions - t.partitions
        draft.answer(event.request, events.Added(refused=dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)))
    elif event.partitions <= t.partitions:
        draft.answer(event.request, events.Added())
    else:
        started_ms = t.started_ms if t.phase is Phase.ONGOING else draft.now_ms
        grown = replace(
            t,
            phase=Phase.ONGOING,
            partitions=t.partitions | event.partitions,
            started_ms=started_ms,
            previous_producer_id=NO_ID,
            previous_producer_epoch=NO_EPOCH,
            ended_producer_epoch=NO_EPOCH,
            version=0,
        )
        draft.store(grown, events.Answer(event.request, events.Added()))


def _add_refusal(t: Transaction, event: events.Add) -> ErrorCode:
    if _is_next(t, event):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if t.producer_id == NO_ID or t.producer_id != event.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if t.producer_epoch != event.producer_epoch or t.is_kept:
        return ErrorCode.PRODUCER_FENCED
    is_changing = t.storing is not None and not (event.is_question and event.partitions <= t.partitions)
    is_ending = t.storing is not None and t.storing.phase is not Phase.ONGOING
    if t.phase in DECIDED or is_changing or is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def _is_next(t: Transaction, event: events.Add | events.End) -> bool:
    """Return whether the producer goes on with the id that it was told at the end of the last epoch, too early."""
    return t.phase in DECIDED and (event.producer_id, event.producer_epoch) == (
        t.next_producer_id,
        t.next_producer_epoch,
    )


def _end(draft: _Draft, event: events.End) -> None:
    t = draft.transaction
    is_repeated = _is_repeated(t, event)
    error = _end_refusal(t, event, is_repeated=is_repeated)
    if error is not None:
        goes_on = (t.producer_id, t.producer_epoch) if error is ErrorCode.NONE else ()
        draft.answer(event.request, events.Ended(error, *goes_on))
        return
    next_pair = t.next_producer_id, t.next_producer_epoch
    if event.bumps_epoch and not t.is_kept and t.producer_epoch >= EPOCH_GIVEN_MAX:
        next_pair = event.fresh_id, 0
    decided = replace(
        t,
        phase=Phase.PREPARE_COMMIT if event.commits else Phase.PREPARE_ABORT,
        producer_epoch=t.producer_epoch + event.bumps_epoch,
        next_producer_id=next_pair[0],
        next_producer_epoch=next_pair[1],
        ended_producer_epoch=t.producer_epoch if t.is_kept else NO_EPOCH,
        version=2 if event.bumps_epoch else 0,
        unmarked=t.partitions,
    )
    goes_on = next_pair if next_pair[0] != NO_ID else (t.producer_id, decided.producer_epoch)
    draft.store(decided, events.Answer(event.request, events.Ended(ErrorCode.NONE, *goes_on)))


def _is_repeated(t: Transaction, event: events.End) -> bool:
    """Return whether this End was done already: the epoch of its producer has gone up since."""
    if t.phase not in DECIDED and t.phase not in COMPLETED:
        return False
    named = event.producer_id, event.producer_epoch
    before = {(t.producer_id, t.ended_producer_epoch), (t.previous_producer_id, t.ended_producer_epoch)}
    if event.bumps_epoch:
        before |= {(t.producer_id, t.producer_epoch - 1), (t.previous_producer_id, EPOCH_GIVEN_MAX)}
    return event.producer_epoch != NO_EPOCH and named in before


def _end_refusal(t: Transaction, event: events.End, *, is_repeated: bool) -> ErrorCode | None:
    """Return the answer; None: the transaction ends now."""
    asked = Phase.PREPARE_COMMIT if event.commits else Phase.PREPARE_ABORT
    if _is_next(t, event) and not is_repeated:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if t.producer_id == NO_ID or (t.producer_id != event.producer_id and not is_repeated):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if t.producer_epoch != event.producer_epoch and not is_repeated:
        return ErrorCode.PRODUCER_FENCED
    # A client with an epoch per transaction may be one further, and has to come again for that.
    is_next = event.bumps_epoch and t.phase in DECIDED
    if t.storing is not None or t.phase is asked or is_next:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if t.phase is Phase.ONGOING:
        return None
    is_done = t.phase is DECIDED[asked] and (is_repeated or not event.bumps_epoch)
    # A client with an epoch per transaction may abort one that nothing was added to: its epoch goes up even so.
    if not is_done and event.bumps_epoch and not event.commits and not is_repeated:
        return None
    return ErrorCode.NONE if is_done else ErrorCode.INVALID_TXN_STATE


def _fence(draft: _Draft, answer: events.Answer | None = None) -> None:
    """Abort the transaction with a higher epoch, which its producer does not have."""
    t = draft.transaction
    aborted = replace(
        t, phase=Phase.PREPARE_ABORT, producer_epoch=t.producer_epoch + 1, version=2, unmarked=t.partitions
    )
    draft.store(aborted, answer)


def _tick(draft: _Draft, event: events.Ticked) -> None:
    t = draft.transaction
    has_timeout = t.timeout_ms != NO_TIMEOUT_MS
    if t.storing is not None:
        return
    if t.phase is Phase.ONGOING and has_timeout and t.started_ms + t.timeout_ms < draft.now_ms:
        _fence(draft)
    elif not t.unmarked:
        draft.go_on()


def _expire(draft: _Draft, event: events.Expire) -> None:
    t = draft.transaction
    is_idle = t.phase is Phase.EMPTY or t.phase in COMPLETED
    is_old = t.updated_ms + draft.limits.transactional_id_expiration_ms <= draft.now_ms
    if is_idle and is_old and t.storing is None:
        draft.store(Transaction(id=t.id, phase=Phase.DEAD))


def _unload(draft: _Draft, event: events.Unloaded) -> None:
    draft.transaction = Transaction(id=draft.transaction.id, phase=Phase.DEAD)


def _stored(draft: _Draft, event: events.Stored) -> None:
    t, answer = draft.transaction, event.append.answer
    error = ERRORS_OF_APPENDS.get(event.error, event.error)
    if t.phase is Phase.DEAD and error is ErrorCode.NONE:
        error = ErrorCode.NOT_COORDINATOR  # another one may have begun from what it found
    if answer is not None:
        draft.effects.append(events.Answer(answer.request, type(answer.body)(error)) if error else answer)
    if t.phase is Phase.DEAD:
        return
    if error is not ErrorCode.NONE:
        draft.transaction = replace(t, storing=None)
    elif event.append.stored.phase is Phase.DEAD:
        draft.transaction = Transaction(id=t.id)
    else:
        draft.transaction = event.append.stored
        draft.go_on()


def _marked(draft: _Draft, event: events.Marked) -> None:
    draft.transaction = replace(draft.transaction, unmarked=draft.transaction.unmarked - event.partitions)
    if not draft.transaction.unmarked:
        draft.go_on()


_ACTS: Mapping[type[events.Event], Callable[[_Draft, Any], None]] = {
    events.Initialize: _initialize,
    events.Add: _add,
    events.End: _end,
    events.Stored: _stored,
    events.Marked: _marked,
    events.Ticked: _tick,
    events.Expire: _expire,
    events.Unloaded: _unload,
}
