"""Every order of marker, verification, next batch, repeated requests and deaths; and bugs that the laws must find."""

from dataclasses import replace

import pytest

from logstore.log.producers.state import ProducerState, ProducerStates
from replication.coordinators.transactions.machine import events, step
from replication.coordinators.transactions.machine.state import EPOCH_GIVEN_MAX
from replication.errors import ErrorCode
from replication.replica.leader.writers import Question, Writers
from tests.sim import epoch_laws, epochs
from tests.support.repeats import only_long, soaked

LAST = EPOCH_GIVEN_MAX
# The fates of the transactions, how many records each has, in how many partitions, how often something goes wrong, and
# the first epoch.
SMALL = [("cac", 2, 1, 0, 0), ("cac", 2, 2, 0, 0), ("cc", 1, 1, 1, LAST), ("aca", 1, 1, 1, 0), ("cc", 2, 1, 1, 0)]
LARGE = [("cc", 2, 2, 1, 0), ("ca", 1, 1, 2, 0), ("ac", 1, 1, 2, LAST - 1)]
HUGE = [("cac", 1, 1, 2, 0), ("cc", 2, 1, 2, 0), ("ac", 2, 2, 2, LAST), ("cc", 1, 1, 3, 0)]

right_step, right_refusal, right_fence = step._end, step._end_refusal, step._fence
right_add_refusal, right_marked = step._add_refusal, step._marked


def explore(fates, records, partitions, deaths, epoch):
    return epoch_laws.explore(epochs.begun(fates, records, partitions, deaths, epoch), records)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_no_order_breaks_a_law(case):
    assert explore(*case).ends


@only_long("tens of thousands of worlds")
@pytest.mark.soak
@pytest.mark.timeout(soaked(300, 14_400))
@pytest.mark.parametrize("case", [*LARGE, *HUGE] if soaked(0, 1) else LARGE, ids=str)
def test_no_order_with_more_deaths_breaks_a_law(case):
    found = explore(*case)
    print(f"\n{case}: {found}")
    assert found.ends


def _no_bump(draft, event):
    right_step(draft, replace(event, bumps_epoch=False))


def _any_epoch_ends(t, event, *, is_repeated):
    return right_refusal(t, replace(event, producer_epoch=t.producer_epoch), is_repeated=is_repeated)


def _none_is_repeated(t, event):
    return False


def _ends_anything(self, producer_id, producer_epoch, coordinator_epoch, *, is_above=False):
    known = {each.producer_id: each for each in self.states()}
    return producer_id in known and known[producer_id].is_open


def _fences_in_vain(draft, answer=None):
    right_fence(draft, answer)
    target = replace(draft.transaction.storing, producer_epoch=draft.transaction.producer_epoch)
    draft.transaction = replace(draft.transaction, storing=target)
    draft.effects[-1] = events.Append(target, answer)


def _keeps_batches(self, batch, coordinator_epoch, now_ms):
    return self._replace(epoch=batch.producer_epoch, open_from=-1, coordinator_epoch=coordinator_epoch)


def _tells_at_once(draft, target, answer=None):
    target = replace(target, updated_ms=draft.now_ms, storing=None)
    draft.transaction = replace(draft.transaction, storing=target)
    draft.effects += [events.Append(target), *([answer] if answer else ())]


def _adds_to_what_is_decided(t, event):
    error = right_add_refusal(replace(t, phase=step.Phase.ONGOING, storing=None), event)
    return ErrorCode.NONE if error is ErrorCode.CONCURRENT_TRANSACTIONS else error


def _one_marker_is_all(draft, event):
    right_marked(draft, events.Marked(draft.transaction.unmarked))


MUTANTS = {
    "the epoch does not go up": (step._ACTS, events.End, _no_bump),
    "nobody is verified": (Writers, "holds", lambda *_: True),
    "a marker says nothing to who is verified": (Writers, "end", lambda *_: None),
    "an answer counts that a marker has overtaken": (Question, "judge", lambda _, error: error),
    "a late marker ends what is open": (ProducerStates, "may_end", _ends_anything),
    "a repeated EndTxn ends the transaction that is open": (step, "_end_refusal", _any_epoch_ends),
    "a repeated EndTxn is not known": (step, "_is_repeated", _none_is_repeated),
    "sequence numbers go on behind the marker of another epoch": (ProducerState, "with_marker", _keeps_batches),
    "a transaction begins in a log with any sequence number": (epochs, "has_begun", lambda *_: True),
    "a decision is told before it is stored": (step._Draft, "store", _tells_at_once),
    "a partition is added to what is decided": (step, "_add_refusal", _adds_to_what_is_decided),
    "the first marker completes": (step._ACTS, events.Marked, _one_marker_is_all),
    "a timeout fences nobody": (step, "_fence", _fences_in_vain),
    "a new coordinator writes no markers": (step, "resume", lambda stored, *_: (stored, ())),
    "the next producer id is not known before its time": (step, "_is_next", lambda *_: False),
}


def explore_all():
    for case in [*SMALL, *LARGE]:
        explore(*case)


@pytest.fixture
def _nothing_known():
    """The states of logs are known by their content, and a mutant makes others of them."""
    epochs.states_of.cache_clear()
    yield
    epochs.states_of.cache_clear()


@pytest.mark.usefixtures("_nothing_known")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_laws_find_a_bug_that_is_put_in(mutant, monkeypatch):
    owner, name, wrong = MUTANTS[mutant]
    (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, name, wrong)
    with pytest.raises(AssertionError):
        explore_all()
