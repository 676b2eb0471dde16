"""Laws of the stream reader: each offset in one batch, a batch planned again is the same, losses are told."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from datasource.errors import DataLossError
from logstore import InvalidRequestError, OffsetOutOfRangeError, StoreError, UnknownPartitionError, UnknownTopicError
from replication.errors import ErrorCode, KafkaError
from tests.support.memory_target import MemoryGroup, MemoryTarget, batch_reader, planned, stream_reader

ALL = {"subscribe": "t", "startingOffsets": "earliest"}


@pytest.fixture
def target():
    target = MemoryTarget()
    target.create("t", 30, 10)
    return target


def through_json(offset):
    """The offset that comes back from Spark."""
    return json.loads(json.dumps(offset))


class Query:
    """Drives a reader as Spark does, with a checkpoint of end offsets."""

    def __init__(self, target, log=None, **options):
        self.reader = stream_reader(target, **options)
        self.log = [] if log is None else log

    def trigger(self, limit=None):
        """One trigger: the ranges that were read, or None when Spark sees nothing new."""
        limit = limit or self.reader.getDefaultReadLimit()
        start = self.log[-1] if self.log else self.reader.initialOffset()
        end = through_json(self.reader.latestOffset(through_json(start), limit))
        if self.log and json.dumps(end) == json.dumps(start):
            return None
        self.log.append(end)
        return self.plan(len(self.log) - 1)

    def plan(self, number):
        start = self.log[number - 1] if number else self.reader.initialOffset()
        return planned(self.reader.partitions(through_json(start), through_json(self.log[number])))


def test_the_start_stays_while_the_end_moves(target):
    reader = stream_reader(target, subscribe="t")
    first = reader.initialOffset()
    target.grow("t", 50, 20)
    assert reader.initialOffset() == first


def test_a_query_that_starts_at_the_end_reads_what_comes_after(target):
    query = Query(target, subscribe="t")
    assert query.trigger() == []
    assert query.trigger() is None
    target.grow("t", 33, 10)
    assert query.trigger() == [("t", 0, 30, 33)]
    assert query.trigger() is None


def test_offsets_name_the_place_and_those_of_before_are_read_without_a_batch_for_it(target):
    query = Query(target, **ALL)
    query.trigger()
    reported = query.reader.reportLatestOffset()
    assert {offset["place"] for offset in (query.reader.initialOffset(), query.log[-1], reported)} == {"/memory"}
    old = {name: value for name, value in query.log[-1].items() if name not in ("place", "init")}
    moved = Query(target, [old], **ALL | {"path": "/elsewhere"})
    assert moved.trigger() is None
    target.grow("t", 31, 10)
    assert moved.trigger() == [("t", 0, 30, 31)]
    assert moved.log[-1]["place"] == "/elsewhere"


def test_the_first_batch_is_the_same_after_a_restart_though_the_end_has_moved(target):
    query = Query(target, subscribe="t")
    query.reader.initialOffset()
    target.grow("t", 35, 10)
    batch = query.trigger()
    assert batch == [("t", 0, 30, 35)]
    target.grow("t", 90, 90)
    again = Query(target, query.log, subscribe="t")
    assert again.plan(0) == batch


def test_the_start_of_batch_0_does_not_stay_in_the_offsets(target):
    query = Query(target, **ALL, maxOffsetsPerTrigger="8")
    for _ in range(3):
        query.trigger()
    assert ["init" in offset for offset in query.log] == [True, False, False]


def test_a_batch_without_data_reads_nothing_again(target):
    query = Query(target, **ALL)
    query.trigger()
    end = query.log[0]
    assert query.reader.partitions(end, end) == []


@settings(deadline=None)  # other processes may have the machine
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6), st.integers(1, 50), st.booleans())
def test_every_offset_is_read_once_however_the_topic_grows(steps, limit, by_bytes):
    target = MemoryTarget()
    target.create("t", 5, 0)
    options = {"maxBytesPerTrigger": str(limit * 100)} if by_bytes else {"maxOffsetsPerTrigger": str(limit)}
    query = Query(target, **ALL, **options)
    query.reader.prepareForTriggerAvailableNow()  # does not wait when idle
    ends, seen = [5, 0], {0: 0, 1: 0}
    for more in itertools.chain(steps, itertools.repeat((0, 0))):
        ends = [end + n for end, n in zip(ends, more, strict=True)]
        target.grow("t", *ends)
        query.reader.prepareForTriggerAvailableNow()
        batch = query.trigger()
        for _, p, start, end in batch or []:
            assert start == seen[p]
            seen[p] = end
        if batch and not by_bytes:
            assert sum(end - start for _, _, start, end in batch) <= limit
        if batch is None and more == (0, 0):
            break
    assert seen == dict(enumerate(ends))


def test_a_limit_is_shared_in_proportion(target):
    query = Query(target, **ALL, maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert query.trigger() == [("t", 0, 0, 15), ("t", 1, 0, 5)]


def test_a_limit_in_bytes_takes_whole_batches_and_always_one(target):
    query = Query(target, **ALL, maxBytesPerTrigger="2000")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(2000)
    assert query.trigger() == [("t", 0, 0, 10), ("t", 1, 0, 10)]
    assert query.trigger() == [("t", 0, 10, 30)]


def test_once_reads_everything_whatever_the_limits(target):
    query = Query(target, **ALL, maxOffsetsPerTrigger="1", maxBytesPerTrigger="1", minOffsetsPerTrigger="1")
    assert query.trigger(ReadAllAvailable()) == [("t", 0, 0, 30), ("t", 1, 0, 10)]


def test_available_now_stops_where_the_end_was(target):
    query = Query(target, **ALL, maxOffsetsPerTrigger="25", minOffsetsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    target.grow("t", 300, 300)
    assert query.trigger() == [("t", 0, 0, 19), ("t", 1, 0, 6)]
    assert query.trigger() == [("t", 0, 19, 30), ("t", 1, 6, 10)]
    assert query.trigger() is None


def test_few_records_wait_for_more(target):
    query = Query(target, **ALL, minOffsetsPerTrigger="10")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    query.trigger()
    target.grow("t", 35, 14)
    assert query.trigger() is None
    target.grow("t", 36, 14)
    assert query.trigger() == [("t", 0, 30, 36), ("t", 1, 10, 14)]


def test_few_records_wait_no_longer_than_the_delay(target):
    query = Query(target, **ALL, minOffsetsPerTrigger="10", maxTriggerDelay="0ms")
    query.trigger()
    target.grow("t", 31, 10)
    assert query.trigger() == [("t", 0, 30, 31)]


def test_new_partitions_start_at_their_beginning(target):
    query = Query(target, subscribe="t")
    query.trigger()
    target.grow("t", 30, 10, 7)
    assert query.trigger() == [("t", 2, 0, 7)]


def test_new_topics_of_a_pattern_are_picked_up(target):
    query = Query(target, subscribePattern="[tu].*")
    query.trigger()
    target.create("u2", 3)
    target.create("x", 3)
    assert query.trigger() == [("u2", 0, 0, 3)]


def test_assigned_partitions_only(target):
    assert Query(target, assign='{"t":[1]}', startingOffsets="earliest").trigger() == [("t", 1, 0, 10)]
    with pytest.raises(UnknownPartitionError):
        Query(target, assign='{"t":[2]}').trigger()


def test_an_unknown_topic_is_refused_with_names_that_look_alike(target):
    target.create("orders", 1)
    with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
        Query(target, subscribe="order").trigger()
    query = Query(target, subscribe="t")
    query.trigger()
    with pytest.raises(UnknownTopicError):
        Query(target, query.log, subscribe="t,more").trigger()


def test_a_topic_that_is_no_longer_subscribed_is_not_forgotten_in_silence(target):
    target.create("u", 3)
    query = Query(target, subscribe="t,u", startingOffsets="earliest")
    query.trigger()
    target.grow("t", 31, 10)
    target.grow("u", 9)
    with pytest.raises(DataLossError, match="'u' was read by this query before and is not chosen any more"):
        Query(target, query.log, subscribe="t").trigger()
    assert Query(target, query.log, subscribe="t", failOnDataLoss="false").trigger() == [("t", 0, 30, 31)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"t":{"0":3}}', "does not mention t-1"), ('{"t":{"0":3,"1":0,"2":0}}', "does not read, t-2")],
)
def test_starting_offsets_name_every_partition(target, text, problem):
    with pytest.raises(InvalidRequestError, match=problem):
        stream_reader(target, subscribe="t", startingOffsets=text).initialOffset()


def test_starting_offsets_may_be_the_ends_but_not_beyond(target):
    assert Query(target, subscribe="t", startingOffsets='{"t":{"0":-1,"1":-2}}').trigger() == [("t", 1, 0, 10)]
    with pytest.raises(OffsetOutOfRangeError, match="t-1"):
        Query(target, subscribe="t", startingOffsets='{"t":{"0":0,"1":11}}').trigger()


def test_a_pattern_that_matches_no_topic_is_waited_for_and_said_once(target, caplog):
    query = Query(target, subscribePattern="new", startingOffsets="earliest")
    assert query.trigger() == []
    assert query.trigger() is None
    assert caplog.text.count("subscribePattern='new' matches no topic") == 1
    target.create("new", 3)
    assert query.trigger() == [("new", 0, 0, 3)]


def test_a_start_by_time(target):
    target.content["t"].timestamps = {0: {1000: 4}, 1: {}}
    with pytest.raises(InvalidRequestError, match=r"t-1 has no record at or after.*Strategy=latest"):
        Query(target, subscribe="t", startingTimestamp="900").trigger()
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    assert Query(target, subscribe="t", startingTimestamp="900", **lenient).trigger() == [("t", 0, 4, 30)]
    times = '{"t":{"0":1001,"1":0}}'
    assert Query(target, subscribe="t", startingOffsetsByTimestamp=times, **lenient).trigger() == []


# --- loss ---


def test_records_that_are_gone_fail_the_query_with_what_and_why(target):
    query = Query(target, **ALL, maxOffsetsPerTrigger="8")
    query.trigger()
    target.lose("t", 0, 20)
    with pytest.raises(
        DataLossError, match=r"t-0 \[6, 20\) is lost: the log starts at offset 20.*failOnDataLoss=false"
    ):
        query.trigger()
    lenient = Query(target, query.log, **ALL, failOnDataLoss="false")
    assert lenient.trigger() == [("t", 0, 20, 30), ("t", 1, 2, 10)]


def test_a_planned_batch_that_is_gone_is_a_loss_too(target):
    query = Query(target, **ALL)
    query.trigger()
    target.lose("t", 0, 20)
    with pytest.raises(DataLossError, match=r"t-0 \[0, 20\)"):
        Query(target, query.log, **ALL).plan(0)
    assert Query(target, query.log, **ALL, failOnDataLoss="false").plan(0) == [
        ("t", 0, 20, 30),
        ("t", 1, 0, 10),
    ]


def test_a_log_that_got_shorter_is_a_loss(target):
    query = Query(target, **ALL)
    query.trigger()
    target.grow("t", 25, 10)
    with pytest.raises(DataLossError, match=r"t-0 \[25, 30\) is lost: the log ends at offset 25"):
        query.trigger()
    lenient = Query(target, query.log, **ALL, failOnDataLoss="false")
    assert lenient.trigger() == []
    target.grow("t", 28, 10)
    assert lenient.trigger() == [("t", 0, 25, 28)]


def test_a_topic_recreated_is_not_taken_for_the_old_one(target):
    query = Query(target, **ALL)
    query.trigger()
    target.create("t", 40, 40, topic_id="another")
    with pytest.raises(DataLossError, match="'t' was deleted and created again"):
        query.trigger()
    lenient = Query(target, query.log, **ALL, failOnDataLoss="false")
    assert lenient.trigger() == [("t", 0, 0, 40), ("t", 1, 0, 40)]
    assert lenient.trigger() is None


def test_a_deleted_topic_is_a_loss(target):
    target.create("u", 5)
    query = Query(target, subscribe="t,u", startingOffsets="earliest")
    query.trigger()
    del target.content["u"]
    with pytest.raises(DataLossError, match=r"'u' was deleted; .*u-0 from offset 5 on"):
        query.trigger()
    lenient = Query(target, query.log, subscribe="t,u", failOnDataLoss="false")
    assert lenient.trigger() == []
    assert lenient.trigger() is None
    target.create("u", 2, topic_id="another")
    assert lenient.trigger() == [("u", 0, 0, 2)]


def test_a_task_notices_what_was_lost_since_it_was_planned(target):
    reader = stream_reader(target, **ALL)
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    target.lose("t", 1, 4)
    with pytest.raises(DataLossError, match=r"t-1 \[0, 4\)"):
        list(reader.read(task))
    lenient = stream_reader(target, **ALL, failOnDataLoss="false")
    target.reads.clear()
    assert sum(batch.num_rows for batch in lenient.read(task)) == 36
    assert target.reads == [(0, 0, 30), (1, 4, 10)]


def test_a_failing_disk_is_tried_again(target):
    from logstore import StorageError

    reader = stream_reader(target, **ALL, **{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "0"})
    failures = [StorageError("EIO")] * 2
    offsets = target.offsets
    target.offsets = lambda topic: offsets(topic) if not failures else (_ for _ in ()).throw(failures.pop())
    assert reader.initialOffset()["offsets"] == {"t": {"0": 0, "1": 0}}
    failures += [StorageError("EIO")] * 3
    with pytest.raises(StorageError):
        reader.reportLatestOffset()


# --- a group ---


def test_what_is_done_is_committed_to_the_group_and_nothing_else(target):
    """Spark asks for the next offset when a batch is done; what it has only planned is not committed."""
    group = MemoryGroup()
    query = Query(target, group=group, **ALL, maxOffsetsPerTrigger="20")
    assert (query.trigger(), group.commits) == ([("t", 0, 0, 15), ("t", 1, 0, 5)], [])
    query.trigger()
    assert group.commits == [{"t": {0: 15, 1: 5}}]
    query.reader.commit(query.log[0])
    assert query.trigger() is None
    assert query.trigger() is None
    assert group.commits == [{"t": {0: 15, 1: 5}}, {"t": {0: 30, 1: 10}}]


def test_a_commit_that_fails_is_a_warning_and_is_made_again_later(target, caplog, monkeypatch):
    group = MemoryGroup()
    query = Query(target, group=group, **ALL)
    query.trigger()
    for error in (KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), TimeoutError("late")):
        group.error = error
        assert query.trigger() is None
        assert query.trigger() is None
        assert [record.args[1] for record in caplog.records] == [error]
        caplog.clear()
        monkeypatch.setattr(query.reader, "_commit_after_ms", 0)
    group.error = None
    target.grow("t", 31, 10)
    assert query.trigger() == [("t", 0, 30, 31)]
    assert group.commits == [{"t": {0: 30, 1: 10}}]


def test_a_query_begins_where_its_group_stands(target, caplog):
    group = MemoryGroup({"t": {0: (12,)}, "other": {0: (3,)}})
    query = Query(target, group=group, subscribe="t", startingOffsets="group")
    assert query.trigger() == [("t", 0, 12, 30)]
    assert "no committed offset of t-1: read from the latest one" in caplog.text
    caplog.clear()
    batch = batch_reader(target, group=group, subscribe="t", startingOffsets="group")
    assert planned(batch.partitions()) == [("t", 0, 12, 30), ("t", 1, 0, 10)]
    assert "t-1: read from the earliest one" in caplog.text
    assert group.commits == []


@pytest.mark.parametrize(
    ("committed", "line", "left"),
    [
        (5, r"t-0 \[5, 8\) is lost: the log starts", [("t", 0, 8, 30)]),
        (40, r"t-0 \[30, 40\) is lost: the log ends", []),
    ],
)
def test_a_commit_outside_the_log_is_data_loss(target, committed, line, left):
    target.lose("t", 0, 8)
    group = MemoryGroup({"t": {0: (committed,), 1: (10,)}})
    options = {"subscribe": "t", "startingOffsets": "group", "group": group}
    for read in (Query(target, **options).trigger, batch_reader(target, **options).partitions):
        with pytest.raises(DataLossError, match=line):
            read()
    options["failOnDataLoss"] = "false"
    assert Query(target, **options).trigger() == left
    assert planned(batch_reader(target, **options).partitions()) == left


# --- leaders that have cut the log ---


def epochs(*values):
    return {"t": {str(p): value for p, value in enumerate(values)}}


@pytest.fixture
def led(target):
    target.elect("t", 3, 30, 10)
    target.ends = {}
    return target


def test_an_offset_keeps_the_epoch_of_the_leader_that_named_it(led):
    query = Query(led, **ALL, maxOffsetsPerTrigger="20")
    query.trigger()
    assert query.log[-1]["epochs"] == epochs(3, 3)
    led.elect("t", 4, 30, 10)
    query.trigger()
    assert query.log[-1]["epochs"] == epochs(4, 4)
    led.elect("t", 5, 30, 10)
    assert query.trigger() is None  # another leader, and no more records: no batch
    assert query.trigger() is None
    assert led.asked == [("t", {0: 3, 1: 3}), ("t", {0: 4, 1: 4})]  # once for each new leader


def test_what_a_new_leader_has_cut_is_told_and_read_anew(led):
    query = Query(led, **ALL)
    query.trigger()
    led.elect("t", 5, 22, 10)
    led.grow("t", 40, 12)  # more than before
    with pytest.raises(DataLossError, match=r"t-0 \[22, 30\) was read, and is cut from the log"):
        query.trigger()
    going_on = Query(led, query.log, **ALL, failOnDataLoss="false")
    assert going_on.trigger() == []  # back to where the logs part
    assert going_on.trigger() == [("t", 0, 22, 40), ("t", 1, 10, 12)]
    assert going_on.trigger() is None


def test_a_leader_that_has_nothing_of_an_epoch_has_cut_all_of_it(led):
    query = Query(led, **ALL)
    query.trigger()
    led.elect("t", 5, 0, 10)
    led.ends[0] = -1
    with pytest.raises(DataLossError, match=r"t-0 \[0, 30\)"):
        query.trigger()


def test_a_batch_that_is_planned_again_under_a_leader_without_its_records_is_data_loss(led):
    query = Query(led, **ALL)
    query.trigger()
    led.elect("t", 5, 22, 10)
    led.grow("t", 40, 10)
    with pytest.raises(DataLossError, match=r"t-0 \[22, 30\) is lost: cut from the log"):
        query.plan(0)
    resumed = Query(led, query.log, **ALL, failOnDataLoss="false")
    assert resumed.plan(0) == [("t", 0, 0, 22), ("t", 1, 0, 10)]


def test_the_first_batch_after_a_cut_begins_where_the_query_began(led):
    query = Query(led, subscribe="t", failOnDataLoss="false")
    query.reader.initialOffset()
    led.elect("t", 5, 22, 10)
    assert query.trigger() == []
    assert (query.log[0]["offsets"]["t"]["0"], query.log[0]["init"]["t"]["0"]) == (22, 30)
    led.grow("t", 40, 10)
    assert query.trigger() == [("t", 0, 22, 40)]


def test_a_checkpoint_without_epochs_is_read_and_gets_them(led):
    """Earlier versions wrote such offsets, and a directory writes them."""
    query = Query(led, **ALL)
    query.trigger()
    del query.log[-1]["epochs"]
    led.elect("t", 5, 22, 10)
    led.grow("t", 40, 10)
    assert query.trigger() == [("t", 0, 30, 40)]
    assert (led.asked, query.log[-1]["epochs"]) == ([], epochs(5, 5))


def test_a_group_keeps_epochs_too(led):
    group = MemoryGroup({"t": {0: (30, 3), 1: (10, 3)}})
    led.elect("t", 5, 22, 10)
    led.grow("t", 40, 10)
    options = {"subscribe": "t", "startingOffsets": "group", "group": group}
    for read in (Query(led, **options).trigger, batch_reader(led, **options).partitions):
        with pytest.raises(DataLossError, match=r"t-0 \[22, 30\) was read, and is cut"):
            read()
    left = batch_reader(led, **options, failOnDataLoss="false").partitions()
    assert planned(left) == [("t", 0, 22, 40)]


def test_a_topic_that_was_made_again_is_not_compared_by_epochs(led):
    query = Query(led, **ALL, failOnDataLoss="false")
    query.trigger()
    led.create("t", 5, 5, topic_id="another")
    led.elect("t", 0, 5, 5)
    assert query.trigger() == [("t", 0, 0, 5), ("t", 1, 0, 5)]


def test_a_task_reads_nothing_that_was_cut_since_it_was_planned(led):
    query = Query(led, **ALL, failOnDataLoss="false")
    start = query.reader.initialOffset()
    (task,) = query.reader.partitions(start, query.reader.latestOffset(start, ReadAllAvailable()))
    led.elect("t", 5, 22, 10)
    list(query.reader.read(task))
    assert led.reads == [(0, 0, 22), (1, 0, 10)]


@pytest.mark.parametrize("offset", [7, None, [], {"orders": {"0": 7}}, {"v": 99, "offsets": {}}])
def test_the_checkpoint_of_another_source_is_refused_by_name(target, offset):
    with pytest.raises(StoreError, match="another source, or a newer pylog, wrote this checkpoint"):
        stream_reader(target, **ALL).latestOffset(offset, ReadAllAvailable())
