"""The rules of batches that are written to a cluster, on values."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.topics.interface import TransactionSettings
from datasource.topics.transactions.batches import ClusterTransactions
from datasource.topics.transactions.protocol import LOOKED_AT, Name
from datasource.topics.transactions.state import (
    OLDER_RUNS,
    Attempt,
    Decision,
    NameState,
    UnknownOutcomeError,
    attempt_id,
    driver_id,
    ended,
    free_names,
    is_leftover,
    names_in,
    read_value,
    taken_over,
    value_of,
)
from logstore.env import SYSTEM
from logstore.errors import TransactionAbortedError
from logstore.store.transactions.state import Content
from replication.client.transactions import DescribedTransaction, Pair

NAMES = st.text("ab/0~", min_size=1, max_size=8)
NUMBERS = st.integers(1, 10**6)


@given(NAMES, NAMES, NUMBERS, st.integers(-8, 8), st.integers(0, 99))
def test_a_run_ends_what_it_and_those_before_it_began_and_nothing_of_the_next_eight(name, other, number, later, batch):
    if number + later < 1:
        return
    id = attempt_id(name, number + later, batch, (3, 1))
    assert is_leftover(id, name, number) == (-OLDER_RUNS <= later <= 0)
    assert not is_leftover(id, other, number) or name == other


@given(NAMES, NAMES, NUMBERS, NUMBERS)
def test_two_batches_that_follow_each_other_and_two_runs_share_no_id(name, other, number, batch):
    ids = [attempt_id(n, r, b, (0, 0)) for n in {name, other} for r in (number, number + 1) for b in (batch, batch + 1)]
    assert len(set(ids)) == len(ids)


@given(NAMES, NAMES, NUMBERS, NUMBERS)
def test_the_names_in_ids_are_those_of_their_drivers_and_tasks_only(driver, task, number, batch):
    ids = [driver_id(driver), attempt_id(task, number, batch, (7, 2)), "somebody-else"]
    assert names_in(ids) == {driver, task}


@given(st.lists(st.integers(0, 300), max_size=40), st.booleans(), st.text(max_size=5))
def test_a_record_says_what_the_state_is(ids, is_finished, text):
    attempts = tuple(Attempt(f"i{n}", n, n % 7) for n in ids)
    last = Decision(
        batch_id=len(ids),
        content=Content(rows=5, digest=2**64 - 1),
        origin=text,
        rows={"t-0": 5},
        attempts=attempts,
        is_finished=is_finished,
    )
    for state in (NameState(), NameState(run=text, driver="d", number=3, replaced=("a", "b"), last=last)):
        assert read_value(value_of(state)) == state


def test_a_run_that_was_replaced_never_comes_back():
    state = NameState()
    for run in "abc":
        state = taken_over(state, "q", run, "")
        assert taken_over(state, "q", run, "") is None
    for run in "ab":
        with pytest.raises(TransactionAbortedError, match="superseded"):
            taken_over(state, "q", run, "")
    over = ended(state, "q")
    with pytest.raises(TransactionAbortedError, match="superseded"):
        taken_over(over, "q", "c", "")
    assert taken_over(over, "q", "d", "").number == 4


def test_a_name_that_was_lent_is_free_when_its_run_has_ended():
    taken = {f"~{k}": NameState(run="r", number=1) for k in range(20)}
    assert len(free_names(taken)) == 20
    assert free_names({"~1": NameState(run="r"), "~2": ended(NameState(run="r"), "~2"), "q": NameState(run="r")}) == [
        f"~{k}" for k in range(16) if k != 1
    ]
    with pytest.raises(TransactionAbortedError, match="taken"):
        taken_over(taken["~1"], "~1", "other", "")


def test_a_batch_whose_transactions_may_time_out_is_not_decided():
    settings = TransactionSettings(driver="", timeout_ms=60_000, decision_topic="d")
    check_in_time = ClusterTransactions(None, settings).check_in_time
    check_in_time(SYSTEM.clock.now_ms() - 20_000, Attempt("i", 1, 0))
    with pytest.raises(TransactionAbortedError, match=r"took 31 s.*transaction\.timeout\.ms = 60 s"):
        check_in_time(SYSTEM.clock.now_ms() - 31_000, Attempt("i", 1, 0))


class Refusing:
    """Coordinators that refuse every end, and say that nothing goes on; the topic holds `last`."""

    is_two_phase = False

    def __init__(self, last):
        self.last = last

    async def end(self, attempts, *, commits):
        return list(attempts)

    async def describe(self, ids):
        return {id: DescribedTransaction(id, "Empty", Pair(9, 9), 0, 0, frozenset()) for id in ids}

    async def read(self, name):
        return NameState(run="run", last=self.last)


@pytest.mark.parametrize(
    ("batch", "is_finished", "is_lost"), [(6, True, True), (7, False, True), (7, True, False), (8, False, False)]
)
def test_a_refused_end_is_nothing_to_do_only_where_the_topic_says_so(batch, is_finished, is_lost):
    """An earlier batch says nothing: the marker of the decision comes later."""
    decision = Decision(batch_id=7, content=Content(), rows={"t-0": 1}, attempts=(Attempt("id", 1, 0),))
    name = Name(Refusing(replace(decision, batch_id=batch, is_finished=is_finished)), "query", "run")
    with pytest.raises(UnknownOutcomeError, match="t-0") if is_lost else nullcontext():
        asyncio.run(name._finish(decision))


class Ending:
    """Coordinators that tell one partition after the other: each look finds one more transaction done."""

    is_two_phase = True

    def __init__(self, ids):
        self.open, self.asked = list(ids), []

    async def describe(self, ids):
        self.asked.append(len(ids))
        found = {
            id: DescribedTransaction(
                id, "PrepareCommit" if id in self.open else "CompleteCommit", Pair(1, 0), 0, 0, frozenset()
            )
            for id in ids
        }
        del self.open[:1]
        return found

    async def pause(self, most_s):
        await asyncio.sleep(0)


def test_a_batch_of_many_tasks_is_waited_for_with_short_questions():
    world = Ending([f"id-{n}" for n in range(300)])
    asyncio.run(Name(world, "query", "run").until_visible(list(world.open)))
    assert (world.open, max(world.asked)) == ([], LOOKED_AT)
