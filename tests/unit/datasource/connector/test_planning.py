"""Laws of the planner: nothing is read twice or left out, limits hold, filters spare what may pass."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.connector.offsets import StreamOffset, behind
from datasource.connector.options import TaskLimits
from datasource.connector.planning import (
    TASK_BYTES,
    Bounds,
    Filter,
    is_worth_a_batch,
    limited,
    proportional,
    tasks,
)
from datasource.topics.interface import PartitionRange
from logstore import StoreError

sizes = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), max_size=12)


@given(sizes, st.integers(1, 10**12))
def test_shares_use_the_limit_up_and_exceed_no_backlog(backlog, limit):
    shares = proportional(backlog, limit)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[key] <= backlog[key] for key in backlog)


@given(sizes, st.integers(1, 10**6))
def test_shares_are_in_proportion(backlog, limit):
    total = sum(backlog.values())
    for key, share in proportional(backlog, limit).items():
        assert total <= limit or abs(share - limit * backlog[key] / total) <= 1


def test_a_limit_shortens_ranges_at_their_ends():
    ranges = [PartitionRange("a", 0, 100, 130), PartitionRange("a", 1, 0, 60), PartitionRange("b", 0, 5, 5)]
    assert limited(ranges, 9) == [
        PartitionRange("a", 0, 100, 103),
        PartitionRange("a", 1, 0, 6),
        PartitionRange("b", 0, 5, 5),
    ]
    assert limited(ranges, None) == ranges


def test_little_data_waits_for_company_but_not_forever():
    assert is_worth_a_batch(1, None, 0, 1000)
    assert is_worth_a_batch(10, 10, 0, 1000)
    assert not is_worth_a_batch(9, 10, 999, 1000)
    assert is_worth_a_batch(9, 10, 1000, 1000)


@st.composite
def topic_ranges(draw):
    ranges = []
    for partition in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, 1000))
        ranges.append(PartitionRange("t", partition, start, start + draw(st.integers(0, 400))))
    return ranges


def plan(ranges, limits, batch=7, bytes_each=10):
    return tasks(
        ranges,
        limits,
        floor_batch=lambda r, offset: offset - offset % batch,
        size_bytes=lambda r: r.count * bytes_each,
    )


limits = st.builds(
    TaskLimits,
    min_partitions=st.none() | st.integers(1, 30),
    max_records=st.none() | st.integers(1, 50),
)


@given(topic_ranges(), limits, st.integers(1, 60))
def test_every_offset_is_in_exactly_one_task_in_order(ranges, limits, batch):
    seen = {}
    for task in plan(ranges, limits, batch):
        for r in task:
            assert r.count > 0
            assert seen.setdefault(r.partition, r.start) == r.start, "pieces follow one another"
            seen[r.partition] = r.end
    assert seen == {r.partition: r.end for r in ranges if r.count}


@given(topic_ranges(), limits, st.integers(1, 60))
def test_limits_on_tasks_hold(ranges, limits, batch):
    planned = plan(ranges, limits, batch)
    total = sum(r.count for r in ranges)
    if limits.max_records:
        assert all(sum(r.count for r in task) <= limits.max_records for task in planned)
    if limits.min_partitions:
        assert len(planned) >= min(limits.min_partitions, total)


def test_cuts_fall_on_batches_where_there_are_any():
    planned = plan([PartitionRange("t", 0, 0, 100)], TaskLimits(min_partitions=3), batch=10)
    assert planned == [
        (PartitionRange("t", 0, 0, 30),),
        (PartitionRange("t", 0, 30, 60),),
        (PartitionRange("t", 0, 60, 100),),
    ]
    planned = plan([PartitionRange("t", 0, 0, 30)], TaskLimits(max_records=14), batch=10)
    assert planned == [
        (PartitionRange("t", 0, 0, 10),),
        (PartitionRange("t", 0, 10, 20),),
        (PartitionRange("t", 0, 20, 30),),
    ]


def test_small_partitions_share_a_task_and_large_ones_do_not():
    small = [PartitionRange("t", p, 0, 10) for p in range(5)]
    assert plan(small, TaskLimits()) == [tuple(small)]
    assert len(plan(small, TaskLimits(), bytes_each=TASK_BYTES // 10)) == 5
    assert len(plan(small, TaskLimits(), bytes_each=TASK_BYTES // 20)) == 3


def test_nothing_to_read_needs_no_task():
    assert plan([PartitionRange("t", 0, 5, 5), PartitionRange("t", 1, 9, 3)], TaskLimits(min_partitions=4)) == []


# --- offsets ---

offsets = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 12), st.integers(0, 2**62), max_size=4),
    max_size=3,
)


@given(offsets, st.none() | offsets)
def test_a_position_survives_the_checkpoint(position, init):
    value = StreamOffset(offsets=position, ids=dict.fromkeys(position, "id"), init=init)
    again = StreamOffset.from_json(value.to_json())
    assert again == value
    assert str(again.to_json()) == str(value.to_json())


def test_equal_positions_have_equal_texts():
    one = StreamOffset(offsets={"b": {1: 1, 0: 0}, "a": {10: 1, 9: 2}}, ids={"b": "x", "a": "y"})
    two = StreamOffset(offsets={"a": {9: 2, 10: 1}, "b": {0: 0, 1: 1}}, ids={"a": "y", "b": "x"})
    assert str(one.to_json()) == str(two.to_json())


@pytest.mark.parametrize("value", [{}, {"v": 2, "offsets": {}}, {"orders": {"0": 5}}])
def test_a_foreign_checkpoint_is_refused(value):
    with pytest.raises(StoreError, match="checkpointLocation"):
        StreamOffset.from_json(value)


def test_lag_counts_what_is_not_read_yet():
    assert behind({"a": {0: 5}}, {"a": {0: 7, 1: 3}, "b": {0: 1}}) == {"a": {0: 2, 1: 3}, "b": {0: 1}}


# --- filters ---

MOMENT = datetime(2024, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)
MOMENT_MS = 1_714_564_800_123


def bounds(*filters):
    return Bounds(filters=tuple(Filter(*f) for f in filters))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "EqualTo",
                    "EqualNullSafe",
                    "GreaterThan",
                    "GreaterThanOrEqual",
                    "LessThan",
                    "LessThanOrEqual",
                ]
            ),
            st.just("offset"),
            st.integers(-5, 60),
        )
        | st.tuples(st.just("In"), st.just("offset"), st.lists(st.integers(0, 50), min_size=1, max_size=4)),
        max_size=4,
    )
)
def test_no_offset_that_passes_is_excluded(filters):
    start, end = bounds(*filters).offsets(10, 40)
    accepts = {
        "EqualTo": lambda o, v: o == v,
        "EqualNullSafe": lambda o, v: o == v,
        "GreaterThan": lambda o, v: o > v,
        "GreaterThanOrEqual": lambda o, v: o >= v,
        "LessThan": lambda o, v: o < v,
        "LessThanOrEqual": lambda o, v: o <= v,
        "In": lambda o, v: o in v,
    }
    passing = [o for o in range(10, 40) if all(accepts[kind](o, v) for kind, _, v in filters)]
    assert all(start <= o < end for o in passing)
    if passing:
        assert (start, end - 1) == (passing[0], passing[-1]) or any(kind == "In" for kind, _, _ in filters)
    assert 10 <= start <= end


def test_topics_and_partitions_are_excluded():
    assert not bounds(("EqualTo", "topic", "a")).allows("b", 0)
    assert bounds(("In", "topic", ["a", "b"])).allows("b", 0)
    assert not bounds(("StringStartsWith", "topic", "x")).allows("b", 0)
    assert not bounds(("StringEndsWith", "topic", "x")).allows("b", 0)
    assert not bounds(("StringContains", "topic", "x")).allows("b", 0)
    assert not bounds(("EqualTo", "partition", 1)).allows("b", 0)
    assert not bounds(("GreaterThan", "partition", 0)).allows("b", 0)
    assert not bounds(("LessThanOrEqual", "partition", 3)).allows("b", 4)
    assert not bounds(("In", "partition", [1, 2])).allows("b", 0)
    assert bounds(("Not", "", None), ("IsNotNull", "topic", None), ("IsNotNull", "partition", None)).allows("b", 0)


@pytest.mark.parametrize(
    ("kind", "value", "low_ms"),
    [
        ("GreaterThan", MOMENT, MOMENT_MS + 1),
        ("GreaterThanOrEqual", MOMENT, MOMENT_MS),
        ("EqualTo", MOMENT, MOMENT_MS),
        ("In", [MOMENT, MOMENT - timedelta(seconds=1)], MOMENT_MS - 1000),
        ("LessThan", MOMENT, None),
        ("IsNotNull", None, None),
    ],
)
def test_timestamps_give_a_first_one(kind, value, low_ms):
    assert bounds((kind, "timestamp", value)).timestamp_ms == low_ms


def test_a_time_of_year_9999_keeps_its_millisecond():
    far = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert bounds(("EqualTo", "timestamp", far)).timestamp_ms == 253_402_300_799_999


def test_a_moment_that_has_no_place_in_this_time_zone_bounds_nothing():
    first = datetime(1, 1, 1)  # noqa: DTZ001 - as Spark gives it
    for kind, value in (("GreaterThanOrEqual", first), ("In", [MOMENT, first])):
        assert bounds((kind, "timestamp", value)).timestamp_ms in (None, -62_135_596_800_000)


def test_filters_on_other_columns_exclude_nothing():
    other = bounds(("EqualTo", "value", b"x"), ("IsNotNull", "key", None))
    assert other.allows("t", 0)
    assert other.offsets(3, 9) == (3, 9)
    assert other.timestamp_ms is None
