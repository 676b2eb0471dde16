"""From where on `replace` reads: only what follows the batch before is known, of this run, in these partitions."""

from dataclasses import replace

import pytest

from datasource.connector.written import Written, is_all
from datasource.topics.interface import LedRange
from logstore import OffsetRange

BEFORE = Written("run", 4, "id", {0: OffsetRange(0, 10), 1: OffsetRange(5, 20)})
NOW = replace(BEFORE, batch=5, extents={0: OffsetRange(0, 13), 1: OffsetRange(22, 22)})


def test_a_batch_reads_what_the_one_before_it_wrote_and_what_retention_left():
    assert NOW.starts(BEFORE) == {0: 10, 1: 22}


@pytest.mark.parametrize(
    "now",
    [
        replace(NOW, run="another"),
        replace(NOW, batch=4),
        replace(NOW, batch=6),
        replace(NOW, topic_id="made again"),
        replace(NOW, extents=NOW.extents | {2: OffsetRange(0, 0)}),
        replace(NOW, extents={0: OffsetRange(0, 13)}),
        replace(NOW, extents=NOW.extents | {0: OffsetRange(0, 9)}),
        replace(NOW, extents=NOW.extents | {0: LedRange(0, 13, 7)}),
    ],
)
def test_all_is_read_where_something_else_may_have_been_written_or_cut(now):
    assert now.starts(BEFORE) is None


def test_all_is_read_in_a_first_batch_and_where_spark_does_not_name_the_run():
    assert NOW.starts(None) is None
    assert replace(NOW, run="").starts(replace(BEFORE, run="")) is None


def test_a_partition_where_nothing_lives_has_nothing_older():
    starts = {0: 10, 1: 22}
    assert is_all({}, starts)
    assert is_all({0: 10}, starts)
    assert not is_all({0: 9, 1: 23}, starts)
    assert not is_all({0: 10, 2: 0}, starts)
