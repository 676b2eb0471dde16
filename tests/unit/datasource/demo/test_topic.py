"""`pylog demo` replaces its own topic only."""

import pyarrow as pa
import pytest

import logstore
from datasource.demo.run import PARTITIONS, SPARK_LOG, TOPIC, make_topic
from logstore.errors import PylogError

COLUMNS = pa.schema([("tailnum", pa.string())])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def test_a_topic_that_is_not_the_demos_is_refused(path):
    with logstore.open(path) as store:
        mine = store.create_topic(TOPIC)
    with pytest.raises(PylogError, match="not the demo's"):
        make_topic(path, COLUMNS)
    with logstore.open(path) as store:
        assert store.topic(TOPIC) == mine


def test_what_an_earlier_demo_left_is_made_afresh(path):
    make_topic(path, COLUMNS)
    (path / SPARK_LOG).touch()
    with logstore.open(path) as store:
        first = store.topic(TOPIC)
    make_topic(path, COLUMNS)
    with logstore.open(path) as store:
        again = store.topic(TOPIC)
    assert again.partitions == PARTITIONS
    assert again.topic_id != first.topic_id
