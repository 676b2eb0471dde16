"""The allowed writers and the decisions, as values."""

import json

import pytest

from logstore.errors import BatchConflictError, TransactionAbortedError
from logstore.store.transactions.events import applied, snapshot
from logstore.store.transactions.state import (
    PRODUCER_EPOCH_MAX,
    Content,
    Decision,
    State,
    TransactionAttempt,
    TransactionOwner,
)

P0 = ("orders", "id-1", 0)


def attempt(name="q", batch_id=0, run="r1", task="0") -> TransactionAttempt:
    return TransactionAttempt(
        name=name,
        batch_id=batch_id,
        run=run,
        task=task,
        producer_id=-1,
        epoch=-1,
        partitions=(P0,),
        owner=TransactionOwner(host="h", holder="x", timeout_ms=1),
        seen_ms=0,
    )


def registered(state, *args, **kwargs):
    placed, events = state.to_register(attempt(*args, **kwargs))
    return placed.producer, applied(state, events)


def decision(*winners, name="q", batch_id=0, run="r1", rows=3, digest=9, kept=True, origin="") -> Decision:
    return Decision(
        name=name,
        batch_id=batch_id,
        run=run,
        content=Content(rows=rows, digest=digest),
        decided_ms=0,
        winners=winners,
        kept=kept,
        origin=origin,
    )


def decided(state, *winners, **facts):
    state = applied(state, state.to_decide(decision(*winners, **facts)))
    return applied(state, [["durable", facts.get("name", "q"), facts.get("batch_id", 0)]])


def test_every_attempt_has_an_id_of_its_own():
    first, state = registered(State())
    second, _ = registered(state, task="1")
    assert (first, second) == ((0, 0), (1, 0))


def test_an_id_is_used_again_with_the_next_epoch_once_its_attempt_is_gone():
    first, state = registered(State())
    state = applied(state, [["abort", *first, "why"], ["gone", *first]])
    assert registered(state)[0] == (0, 1)


def test_an_id_is_not_used_again_while_its_markers_are_missing():
    first, state = registered(State())
    assert registered(applied(state, [["abort", *first, "why"]]))[0] == (1, 0)


def test_an_exhausted_id_is_never_used_again():
    first, state = registered(State())
    state = applied(state, [["gone", *first]])
    state = applied(state, [["open", {**attempt().to_json(), "producer_id": 0, "epoch": PRODUCER_EPOCH_MAX}]])
    state = applied(state, [["gone", 0, PRODUCER_EPOCH_MAX]])
    assert registered(state)[0] == (1, 0)


def test_months_of_batches_leave_the_state_as_small_as_one():
    state = State()
    sizes = set()
    for batch_id in range(300):
        winners = []
        for task in range(3):
            winner, state = registered(state, batch_id=batch_id, task=str(task))
            winners.append(winner)
        state = decided(state, *winners, batch_id=batch_id)
        state = applied(state, [["marked", "q", batch_id, [[*P0, 5]]], ["forget", "q", batch_id]])
        sizes.add((len(state.names), len(state.attempts), len(state.decisions), len(state.epochs)))
    assert sizes == {(1, 0, 0, 3)}
    assert state.decided == 300


def test_a_name_that_is_used_once_leaves_nothing():
    winner, state = registered(State(), name="once")
    state = decided(state, winner, name="once", kept=False)
    state = applied(state, [["marked", "once", 0, []], ["forget", "once", 0]])
    assert (state.names, state.attempts, state.decisions) == ({}, {}, {})


# --- outcomes


def test_a_decision_shows_in_all_its_attempts_at_once_and_only_when_it_is_durable():
    first, state = registered(State())
    second, state = registered(state, task="1")
    seen = applied(state, state.to_decide(decision(first, second)))
    assert seen.outcomes() == {}
    assert [each.producer for each in seen.winners(seen.decisions["q", 0])] == [first, second]
    assert applied(seen, [["durable", "q", 0]]).outcomes() == dict.fromkeys((first, second), "committed")


def test_the_attempts_that_the_driver_does_not_name_are_aborted_by_the_decision_itself():
    """(T6) Retries and speculation: two attempts of a task, one is published."""
    winner, state = registered(State())
    loser, state = registered(state)
    state = decided(state, winner)
    assert state.outcomes() == {winner: "committed", loser: "aborted"}
    with pytest.raises(TransactionAbortedError, match="was committed without it"):
        state.check_open(loser)


def test_no_attempt_may_write_after_the_decision():
    """(T4)"""
    winner, state = registered(State())
    state = decided(state, winner)
    with pytest.raises(TransactionAbortedError):
        state.check_open(winner)


def test_an_attempt_that_comes_after_the_decision_is_no_part_of_it():
    """A name that is used once shows no replay."""
    winner, state = registered(State(), name="once")
    state = decided(state, winner, name="once", kept=False)
    late, state = registered(state, name="once", task="late")
    assert (state.outcomes(), state.is_open(late)) == ({winner: "committed"}, True)


def test_an_attempt_that_nobody_knows_may_not_write():
    with pytest.raises(TransactionAbortedError, match="it has ended"):
        State().check_open((3, 0))


def test_a_batch_with_an_aborted_attempt_cannot_be_committed():
    winner, state = registered(State())
    state = applied(state, [["abort", *winner, "timed out"]])
    with pytest.raises(TransactionAbortedError, match="timed out"):
        state.to_decide(decision(winner))


# --- runs


def test_a_new_run_ends_what_the_one_before_left_and_is_not_ended_by_it():
    old, state = registered(State())
    new, state = registered(state, run="r2")
    assert state.outcomes() == {old: "aborted"}
    with pytest.raises(TransactionAbortedError, match="taken over"):
        registered(state, run="r1", task="late")
    assert state.is_open(new)


def test_a_driver_ends_the_attempts_of_its_run_and_later_ones_are_refused():
    first, state = registered(State())
    state = applied(state, state.to_end(state.of_name("q"), ["r1"], "given up"))
    assert state.outcomes() == {first: "aborted"}
    with pytest.raises(TransactionAbortedError, match="given up"):
        state.check_open(first)
    with pytest.raises(TransactionAbortedError, match="has ended the batch of 'q'"):
        registered(state, task="late")
    assert state.to_end([attempt()], ["r1"], "again") == []


def test_a_run_ends_nothing_of_other_names():
    other, state = registered(State(), name="other")
    _, state = registered(state, run="r2")
    assert state.is_open(other)


# --- replays: T7 and T9


def committed_5(**facts):
    winner, state = registered(State(), batch_id=5)
    return decided(state, winner, batch_id=5, **facts)


def test_the_same_batch_again_with_the_same_content_changes_nothing():
    """(T7)"""
    assert committed_5().to_decide(decision(batch_id=5, run="r2")) == []


def test_a_batch_of_a_name_that_is_used_once_is_decided_once():
    winner, state = registered(State(), name="once")
    wanted = decision(winner, name="once", kept=False)
    assert applied(state, state.to_decide(wanted)).to_decide(wanted) == []


@pytest.mark.parametrize("other", [{"rows": 4}, {"digest": 8}])
def test_the_same_batch_again_with_other_content_is_refused(other):
    """(T9)"""
    with pytest.raises(BatchConflictError, match="another content"):
        committed_5().to_decide(decision(batch_id=5, run="r2", **other))


def test_the_same_batch_from_the_same_origin_is_the_same_whatever_its_rows():
    """A query that is not deterministic may compute other rows of the same input; the first ones stand."""
    state = committed_5(origin="offsets a")
    assert state.to_decide(decision(batch_id=5, run="r2", digest=8, origin="offsets a")) == []
    with pytest.raises(BatchConflictError):
        state.to_decide(decision(batch_id=5, run="r2", digest=8, origin="offsets b"))


def test_an_earlier_batch_is_refused_and_says_why():
    """(T9)"""
    with pytest.raises(BatchConflictError, match="older copy"):
        committed_5().to_decide(decision(batch_id=4, run="r2"))
    with pytest.raises(BatchConflictError, match="older copy"):
        registered(committed_5(), batch_id=4, run="r2")


def test_a_later_batch_is_accepted_also_after_a_gap():
    """(T9)"""
    winner, state = registered(committed_5(), batch_id=9, run="r2")
    assert state.to_decide(decision(winner, batch_id=9, run="r2"))


def test_a_batch_is_remembered_when_its_decision_is_forgotten():
    state = applied(committed_5(), [["marked", "q", 5, []], ["forget", "q", 5]])
    assert state.to_decide(decision(batch_id=5, run="r2")) == []
    with pytest.raises(BatchConflictError):
        state.to_decide(decision(batch_id=5, rows=0, run="r2"))


def test_content_does_not_depend_on_how_rows_are_spread_over_tasks():
    parts = [Content(rows=1, digest=2**64 - 1), Content(rows=2, digest=7), Content(rows=3, digest=11)]
    assert sum(parts, Content()) == sum(reversed(parts), Content()) == Content(rows=6, digest=17)


# --- snapshots


def test_a_snapshot_holds_everything():
    winner, state = registered(State(), batch_id=3)
    loser, state = registered(state, batch_id=3, task="1")
    waiting, state = registered(state, name="other")
    state = decided(state, winner, batch_id=3)
    state = applied(state, [["marked", "q", 3, [[*P0, 17]]], ["prepared", *waiting, 5]])
    lost, state = registered(state, name="lost")
    state = applied(state, [["abort", *lost, "why"], ["gone", *lost], ["over", "r0"]])
    again = applied(State(), [json.loads(json.dumps(snapshot(state)))])
    assert again == state
    assert again.outcomes() == {winner: "committed", loser: "aborted"}


def test_an_attempt_of_an_earlier_version_may_lack_facts_and_have_others():
    body = attempt().to_json()
    owner = {"host": "h", "holder": "x", "lease_ms": 7}
    del body["up_ms"], body["prepared"], body["aborted"]
    again = TransactionAttempt.from_json(body | {"owner": owner})
    assert again.owner == TransactionOwner(host="h", holder="x", driver="", timeout_ms=0)
    assert (again.up_ms, again.prepared, again.aborted) == (-1, False, "")
