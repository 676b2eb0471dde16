"""Laws of the batch reader: the options bound it exactly, filters leave out what they can."""

import gc
import sys
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan, Not

from datasource.connector.garbage import exempt_loaded
from datasource.connector.reader import load_kernels
from datasource.connector.source import PylogDataSource
from datasource.errors import DataLossError
from logstore import InvalidRequestError, OffsetOutOfRangeError
from tests.support.memory_target import MemoryTarget, batch_reader, planned, pushing_reader


@pytest.fixture
def target():
    target = MemoryTarget()
    target.create("t", 30, 10)
    target.create("u", 5)
    target.content["t"].timestamps = {0: {1000: 4, 2000: 20}, 1: {1000: 0}}
    return target


def ranges(target, **options):
    return planned(batch_reader(target, **options).partitions())


def test_a_batch_reads_everything_by_default(target):
    assert ranges(target, subscribe="u,t") == [("t", 0, 0, 30), ("t", 1, 0, 10), ("u", 0, 0, 5)]
    assert ranges(target, subscribePattern="u|v") == [("u", 0, 0, 5)]
    assert ranges(target, assign='{"t":[1]}') == [("t", 1, 0, 10)]


def test_offsets_bound_it(target):
    start, end = '{"t":{"0":3,"1":-2}}', '{"t":{"0":-1,"1":6}}'
    assert ranges(target, subscribe="t", startingOffsets=start, endingOffsets=end) == [
        ("t", 0, 3, 30),
        ("t", 1, 0, 6),
    ]


def test_times_bound_it(target):
    assert ranges(target, subscribe="t", startingTimestamp="1000", endingTimestamp="1500") == [
        ("t", 0, 4, 20),
        ("t", 1, 0, 10),
    ]
    by = {
        "startingOffsetsByTimestamp": '{"t":{"0":1500,"1":1}}',
        "endingOffsetsByTimestamp": '{"t":{"0":9000,"1":1}}',
    }
    assert ranges(target, subscribe="t", **by) == [("t", 0, 20, 30)]


def test_a_start_after_the_end_is_a_mistake(target):
    bounds = {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":3}}'}
    with pytest.raises(InvalidRequestError, match="startingOffsets 9 is after endingOffsets 3"):
        ranges(target, assign='{"t":[0]}', **bounds)


@pytest.mark.parametrize("side", ["startingOffsets", "endingOffsets"])
def test_offsets_beyond_the_end_are_refused(target, side):
    with pytest.raises(OffsetOutOfRangeError, match=f"option {side}: offset 6 is outside u-0.* give 5 or less"):
        ranges(target, subscribe="u", **{side: '{"u":{"0":6}}'})


def test_a_pattern_that_matches_no_topic_reads_nothing_and_says_so(target, caplog):
    assert ranges(target, subscribePattern="t.+") == []
    assert "subscribePattern='t.+' matches no topic" in caplog.text
    caplog.clear()
    assert ranges(target, subscribePattern="t.*")
    assert caplog.text == ""


def test_offsets_before_the_start_are_a_loss(target):
    target.lose("u", 0, 3)
    start = {"startingOffsets": '{"u":{"0":1}}'}
    with pytest.raises(DataLossError, match=r"u-0 \[1, 3\)"):
        ranges(target, subscribe="u", **start)
    assert ranges(target, subscribe="u", failOnDataLoss="false", **start) == [("u", 0, 3, 5)]
    assert ranges(target, subscribe="u") == [("u", 0, 3, 5)]


def test_ranges_are_cut_as_asked(target):
    assert len(batch_reader(target, subscribe="t,u").partitions()) == 1
    assert len(batch_reader(target, subscribe="t,u", minPartitions="6").partitions()) == 6
    parts = batch_reader(target, subscribe="t,u", maxRecordsPerPartition="7").partitions()
    assert max(sum(r.count for r in p.ranges) for p in parts) <= 7


def test_filters_leave_out_what_cannot_pass_and_are_all_applied_again(target):
    reader = pushing_reader(target, subscribePattern=".*")
    filters = [
        EqualTo(("topic",), "t"),
        LessThan(("partition",), 1),
        GreaterThanOrEqual(("offset",), 2),
        GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(1.5, UTC)),
        Not(EqualTo(("value",), b"")),
    ]
    assert list(reader.pushFilters(filters)) == filters
    assert planned(reader.partitions()) == [("t", 0, 20, 30)]


def test_filters_leave_out_no_record_that_another_one_of_its_key_may_follow(target):
    reader = pushing_reader(target, subscribe="t", view="latest")
    since = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(1.5, UTC))
    reader.pushFilters(
        [LessThan(("partition",), 1), GreaterThanOrEqual(("offset",), 2), LessThan(("offset",), 9), since]
    )
    assert planned(reader.partitions()) == [("t", 0, 0, 30)]


def test_filters_that_nothing_passes_leave_no_task(target):
    reader = pushing_reader(target, subscribe="t")
    reader.pushFilters([EqualTo(("topic",), "u")])
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_rows_come_with_the_columns_that_were_asked_for(target):
    reader = batch_reader(target, subscribe="t")
    (task,) = reader.partitions()
    first, second = reader.read(task)
    assert first.schema.names == ["partition", "offset"]
    assert first.to_pydict() == {"partition": [0] * 30, "offset": list(range(30))}
    assert second.to_pydict() == {"partition": [1] * 10, "offset": list(range(10))}


@pytest.fixture
def collected():
    """The garbage collector as it is in a new worker of Spark."""
    exempt_loaded.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def is_exempt(objects):
    """Whether the collector looks at none of these."""
    looked_at = {id(each) for each in gc.get_objects()}
    return not any(id(each) in looked_at for each in objects)


@pytest.mark.usefixtures("collected")
def test_a_task_keeps_what_it_loaded_out_of_the_garbage_collections_after_every_task(target):
    load_kernels.cache_clear()
    reader = batch_reader(target, subscribe="t")
    (task,) = reader.partitions()
    later = {}  # as if it came with what the first batch needs
    for _ in reader.read(task):
        later.setdefault("loaded", [object])
    from logstore.records import decoding

    assert gc.get_freeze_count() > 10_000
    assert is_exempt([vars(decoding)])
    assert not is_exempt([later["loaded"]])


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("work", ["schema", "plan"])
def test_a_process_that_plans_keeps_what_it_loaded_out_of_garbage_collections(target, work):
    if work == "schema":
        PylogDataSource({"path": "/nowhere", "subscribe": "t"}).schema()
    else:
        batch_reader(target, subscribe="t").partitions()
    assert is_exempt([vars(sys.modules["datasource.connector.reader"])])


@pytest.mark.usefixtures("collected")
def test_garbage_of_later_work_is_found(target):
    for _ in range(2):
        batch_reader(target, subscribe="t").partitions()
        cycle = []
        cycle.append(cycle)
        before = gc.collect()
        del cycle
        assert gc.collect() > 0, before
