"""Step: who has which records of a share partition, and which are done with. The rules are Kafka's (KIP-932).

An acknowledgement is answered after it is stored. A release, asked for or by an expired lock, counts once it is stored,
too: so no delivery is forgotten of which somebody else could be given the record. A record with a dead letter is stored
as ARCHIVING before its letter is written, and as ARCHIVED afterwards (KIP-1191): so a next leader writes the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

from replication.broker.share.machine import events
from replication.broker.share.machine.acquiring import acquired
from replication.broker.share.machine.runs import NO_GOAL, TERMINAL, Run, Runs, changed, merged
from replication.broker.share.machine.state import Asked, SharePartitionState, ShareTerms
from replication.coordinators.share_state.machine.batches import Batches, DeliveryState, StateBatch, combined
from replication.errors import ErrorCode, KafkaError

Decided: TypeAlias = tuple[SharePartitionState, tuple[events.Effect, ...]]


def load(start: int, batches: Batches) -> SharePartitionState:
    """Return the state that was stored; what lies between its batches was given to nobody who is known of."""
    runs: list[Run] = []
    end = start
    for first, last, state, count in combined((), batches, start):
        if first > end:
            runs.append(Run(end, first - 1))
        runs.append(Run(first, last, state, count))
        end = last + 1
    return _moved(SharePartitionState(start=start, runs=tuple(merged(runs))))


def letters_of(loaded: SharePartitionState, terms: ShareTerms) -> tuple[events.SendLetters, ...]:
    """Return the dead letters that a former leader has perhaps not written. Nobody stored their causes."""
    return tuple(
        events.SendLetters(
            run.first,
            run.last,
            run.delivery_count,
            events.REJECTED if run.delivery_count < terms.delivery_count_limit else events.DELIVERED_TOO_OFTEN,
        )
        for run in loaded.runs
        if run.state == DeliveryState.ARCHIVING
    )


def next_offset(state: SharePartitionState, terms: ShareTerms) -> int | None:
    """Return from where on the log is to be read for a member; None: nobody gets anything now."""
    for run in state.runs:
        if run.is_available:
            return run.first
    return state.end if state.end - state.start < terms.partition_max_record_locks else None


def deadline_ms(state: SharePartitionState) -> int | None:
    """Return when the first lock is over."""
    return min((run.lock_ms for run in state.runs if run.is_locked), default=None)


def step(state: SharePartitionState, event: events.Event, now_ms: int, terms: ShareTerms) -> Decided:
    match event:
        case events.Acquire():
            return _acquire(state, event, now_ms, terms)
        case events.Acknowledge():
            return _acknowledge(state, event, now_ms, terms)
        case events.Release():
            runs = _let_go(state, terms, lambda run: run.member == event.member)
            return _gather(state, runs, event.request)
        case events.Ticked():
            return _gather(state, _let_go(state, terms, lambda run: run.lock_ms <= now_ms))
        case events.LogStarts():
            return _log_starts(state, event.offset), ()
        case events.Stored():
            return _stored(state, event)
        case events.LettersSent():
            archived = partial(_archived, write=state.gathering)
            return _gather(state, changed(state.runs, [(first, last, archived) for first, last in event.ranges]))


def _acquire(state: SharePartitionState, event: events.Acquire, now_ms: int, terms: ShareTerms) -> Decided:
    if not event.batches or event.batches[-1].last < event.offset or event.records_max <= 0:
        return state, (events.Acquired(()),)
    if event.offset < state.start:
        event = replace(event, offset=state.start)
        if event.batches[-1].last < state.start:
            return state, (events.Acquired(()),)
    taken = acquired(state, event, now_ms, terms)
    return _moved(replace(state, runs=taken.runs)), (events.Acquired(taken.ranges),)


# ---------------------------------------------------------------- acknowledgements


def _acknowledge(state: SharePartitionState, event: events.Acknowledge, now_ms: int, terms: ShareTerms) -> Decided:
    def act(kind: int) -> Callable[[Run], Run]:
        return lambda run: _acknowledged(state, run, kind, event.member, now_ms, terms)

    try:
        parts = _parts(state, event.acknowledgements)
        runs = changed(state.runs, ((first, last, act(kind)) for first, last, kind in parts))
    except KafkaError as error:
        return state, (events.Answer(event.request, error.code, error.message),)
    return _gather(state, runs, event.request)


def _parts(
    state: SharePartitionState, acknowledgements: Iterable[events.Acknowledgement]
) -> Iterator[tuple[int, int, int]]:
    """Yield first and last offset and type of what is acknowledged, in order. Raises: KafkaError."""
    end = state.start  # the log may start behind what is acknowledged by now
    for each in acknowledgements:
        if each.last < state.start:
            continue
        _check_bounds(state, each)
        if max(each.first, state.start) < end:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "a record is acknowledged twice")
        end = each.last + 1
        for first, last, kind in _by_type(each):
            if last >= state.start:
                yield max(first, state.start), last, kind


def _check_bounds(state: SharePartitionState, each: events.Acknowledgement) -> None:
    """Raises: KafkaError: INVALID_REQUEST, INVALID_RECORD_STATE: records that nobody has had."""
    if not state.runs:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the records of the acknowledgement are not acquired")
    if each.last >= state.end:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the acknowledgement ends behind the acquired records")


def _by_type(each: events.Acknowledgement) -> Iterator[tuple[int, int, int]]:
    if len(each.types) == 1:
        yield each.first, each.last, each.types[0]
        return
    first = each.first
    for kind, group in groupby(each.types):
        last = first + sum(1 for _ in group) - 1
        yield first, last, kind
        first = last + 1


def _acknowledged(state: SharePartitionState, run: Run, kind: int, member: str, now_ms: int, terms: ShareTerms) -> Run:
    """Raises: KafkaError: INVALID_RECORD_STATE: the member does not have these records."""
    if not run.is_locked:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the records of the acknowledgement are not acquired")
    if run.member != member:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "another member has the records of the acknowledgement")
    if kind == events.RENEW:
        if not terms.renew_acknowledge_enable:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "share.renew.acknowledge.enable is false for the group")
        return run._replace(lock_ms=now_ms + terms.record_lock_duration_ms)
    if kind == events.RELEASE:
        return _released(run, state.gathering, terms)
    if kind == events.REJECT:
        return _given_up(run, state.gathering, terms, events.REJECTED)
    goal = DeliveryState.ACKNOWLEDGED if kind == events.ACCEPT else DeliveryState.ARCHIVED
    return run._replace(goal=goal, write=state.gathering)


def _released(run: Run, write: int, terms: ShareTerms) -> Run:
    if run.delivery_count >= terms.delivery_count_limit:
        return _given_up(run, write, terms, events.DELIVERED_TOO_OFTEN)
    return run._replace(goal=DeliveryState.AVAILABLE, write=write)


def _given_up(run: Run, write: int, terms: ShareTerms, cause: str) -> Run:
    if terms.has_dead_letters:
        return run._replace(goal=DeliveryState.ARCHIVING, write=write, cause=cause)
    return run._replace(goal=DeliveryState.ARCHIVED, write=write)


def _archived(run: Run, write: int) -> Run:
    """Archive a record whose letter is written."""
    is_waiting = run.state == DeliveryState.ARCHIVING and run.goal == NO_GOAL
    return run._replace(goal=DeliveryState.ARCHIVED, write=write) if is_waiting else run


def _let_go(state: SharePartitionState, terms: ShareTerms, is_meant: Callable[[Run], bool]) -> Runs:
    return tuple(
        _released(run, state.gathering, terms) if run.is_locked and is_meant(run) else run for run in state.runs
    )


# ---------------------------------------------------------------- what is stored


def _gather(state: SharePartitionState, runs: Runs, request: int | None = None) -> Decided:
    """Have what changed stored, now or with the next write; answer a request for which nothing is to be stored."""
    before, after = (sum(run.records for run in some if run.write == state.gathering) for some in (state.runs, runs))
    if before == after:
        answers = () if request is None else (events.Answer(request),)
        return replace(state, runs=runs), answers
    asked = state.asked if request is None else (*state.asked, Asked(request, state.gathering))
    return _begin_write(replace(state, runs=runs, asked=asked))


def _begin_write(state: SharePartitionState) -> Decided:
    write = state.gathering
    if state.writing or not any(run.write == write for run in state.runs):
        return state, ()
    state = replace(state, writing=write, gathering=write + 1)
    after = _moved(replace(state, runs=_settled(state.runs, write)))
    batches = tuple(
        StateBatch(max(run.first, after.start), run.last, run.goal, run.delivery_count)
        for run in state.runs
        if run.write == write and run.last >= after.start
    )
    done = sum(run.records for run in after.runs if run.state in TERMINAL)
    store = events.Store(write, after.start, done, combined((), batches, after.start))
    return state, (store,)


def _settled(runs: Runs, write: int) -> Runs:
    """Return the runs as they are once this write is stored."""
    return tuple(
        merged(
            Run(run.first, run.last, run.goal, run.delivery_count)
            if run.goal != NO_GOAL and run.write == write
            else run
            for run in runs
        )
    )


def _stored(state: SharePartitionState, event: events.Stored) -> Decided:
    """Go on with the goals of the write, or without them: then its members have their records still."""
    if event.write != state.writing:
        return state, ()
    letters: tuple[events.SendLetters, ...] = ()
    if event.error:
        runs = tuple(merged(_taken_back(run) if run.write == event.write else run for run in state.runs))
    else:
        letters = tuple(
            events.SendLetters(run.first, run.last, run.delivery_count, run.cause)
            for run in state.runs
            if run.write == event.write and run.goal == DeliveryState.ARCHIVING
        )
        runs = _settled(state.runs, event.write)
    answers = tuple(events.Answer(one.request, event.error) for one in state.asked if one.write == event.write)
    asked = tuple(one for one in state.asked if one.write != event.write)
    state, effects = _begin_write(_moved(replace(state, runs=runs, writing=0, asked=asked)))
    return state, (*answers, *letters, *effects)


def _taken_back(run: Run) -> Run:
    if run.state == DeliveryState.ARCHIVING:  # its letter is written: the next leader writes it again, if anybody
        return Run(run.first, run.last, DeliveryState.ARCHIVED, run.delivery_count)
    return run._replace(goal=NO_GOAL, write=0, cause="")


def _moved(state: SharePartitionState) -> SharePartitionState:
    """Move the start behind what is done with."""
    count = 0
    for run in state.runs:
        if run.state not in TERMINAL:
            break
        count += 1
    if not count:
        return state
    return replace(state, start=state.runs[count - 1].last + 1, runs=state.runs[count:])


def _log_starts(state: SharePartitionState, offset: int) -> SharePartitionState:
    if offset <= state.start:
        return state
    runs = tuple(run._replace(first=max(run.first, offset)) for run in state.runs if run.last >= offset)
    return _moved(replace(state, start=offset, runs=runs))
