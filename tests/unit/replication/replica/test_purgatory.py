"""A producer that waits for a commit waits for its own records only, in whatever order the waits came."""

import asyncio

import hypothesis.strategies as st
from hypothesis import given

from replication.errors import ErrorCode
from replication.replica.leader.purgatory import CommitWait, PendingAppend, PendingProduce, PendingProduces
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


@given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from([-1, 0, 60_000]))
def test_a_request_of_one_batch_waits_as_one_of_many_does(offsets, timeout_ms):
    """For results that come, for a time-out before them, or for neither."""

    async def answers():
        one, many = [], []
        append = PendingAppend(one.append, timeout_ms)
        request = PendingProduce(["a partition"])
        request.then(lambda: many.append(request.results["a partition"]), timeout_ms)
        if not timeout_ms:
            await asyncio.sleep(0.001)
        for offset in offsets:
            for waits in (append, request):
                waits.settle("a partition", AppendResult(base_offset=offset))
            assert append.is_over == request.is_over
        return append.is_over, one, request.is_over, many

    is_over, one, *others = asyncio.run(answers())
    assert [is_over, one] == others
    expected = [AppendResult(base_offset=offset) for offset in offsets[:1]]
    assert one == ([AppendResult(ErrorCode.REQUEST_TIMED_OUT)] if not timeout_ms else expected)
