"""`datasource.count` gives what `load().count()` gives; more kinds of reads are in the unit tests."""

from __future__ import annotations

import pytest

import datasource
from logstore import InvalidConfigError

pytestmark = pytest.mark.spark


def test_as_many_as_spark_counts_now(spark, topics, read):
    topics.create("t", partitions=2)
    assert datasource.count(spark, **topics.options, subscribe="t") == 0
    topics.append("t", [str(n) for n in range(50)], key=[str(n) for n in range(50)])
    part = {"subscribe": "t", "startingOffsets": '{"t": {"0": 3, "1": -2}}', "minPartitions": 5}
    assert datasource.count(spark, **topics.options, **part) == read(**part).count() == 47
    with pytest.raises(InvalidConfigError, match="did you mean 'subscribe'"):
        datasource.count(spark, **topics.options, topics="t")
    with pytest.raises(Exception, match=r"no topic 'tt' in .*did you mean 't'") as refused:
        datasource.count(spark, **topics.options, subscribe="tt")
    assert "Traceback" not in str(refused.value)
