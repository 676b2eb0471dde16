"""A producer that waits for a commit waits for its own records only, in whatever order the waits came."""

import hypothesis.strategies as st
from hypothesis import given

from replication.replica.leader.purgatory import CommitWait, PendingProduce, PendingProduces
from replication.replica.leader.results import AppendResult

STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "reached"]), st.integers(0, 9)))


@given(STEPS)
def test_all_are_reached_that_end_at_the_high_watermark_or_before_in_order(steps):
    waits, model = PendingProduces(), []
    for step, offset in steps:
        if step == "add":
            wait = CommitWait(offset, AppendResult(), PendingProduce(["a partition"]))
            waits.add(wait)
            model.append(wait)
        else:
            found = waits.reached(offset)
            assert [wait.end_offset for wait in found] == sorted(w.end_offset for w in model if w.end_offset <= offset)
            assert {id(wait.request) for wait in found} == {id(w.request) for w in model if w.end_offset <= offset}
            model = [wait for wait in model if wait.end_offset > offset]
        assert len(waits) == len(model)
