"""A query that tests run step by step: each step is one micro-batch, from the checkpoint of the one before."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from datasource import SteppedStream
from logstore import InvalidRequestError
from tests.integration.test_pytest_plugin import STREAM
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(spark, pylog_store):
    pylog_store.create_topic("orders", partitions=2)
    pylog_store.create_topic("copy")
    options = {"path": str(pylog_store.path), "subscribe": "orders", "startingOffsets": "earliest"}
    stream = spark.readStream.format("pylog").options(**options, maxOffsetsPerTrigger="1").load()
    return stream.selectExpr("string(value) AS value")


def test_the_example_of_the_page_runs(spark, pylog_store, pylog_stream):
    exec(STREAM, names := {})
    names["test_counts_go_on_after_a_restart"](spark, pylog_store, pylog_stream)


def test_a_step_is_one_micro_batch_of_all_that_is_there_and_goes_on_from_the_checkpoint(
    orders, pylog_store, pylog_stream, tmp_path
):
    stream = pylog_stream(orders, tmp_path / "checkpoint")
    pylog_store.append("orders", [{"value": "a"}, {"value": "b"}, {"value": "c"}])
    assert sorted(row.value for row in stream.step()) == ["a", "b", "c"]
    assert stream.last_progress.batchId == 0
    assert stream.step() == []
    assert (stream.last_progress.batchId, stream.last_progress.numInputRows) == (0, 3)
    pylog_store.append("orders", [{"value": "d"}])
    assert [row.value for row in SteppedStream(orders, tmp_path / "checkpoint").step()] == ["d"]


@only_long("a query of its own")
def test_a_writer_writes_to_its_own_sink_and_needs_a_checkpoint(orders, pylog_store, pylog_stream, tmp_path):
    stream = pylog_stream(orders.writeStream.foreachBatch(lambda frame, number: None))
    stream.step()
    with pytest.raises(InvalidRequestError, match="the writer has no checkpointLocation"):
        stream.step()
    writer = orders.writeStream.format("pylog").options(path=str(pylog_store.path), topic="copy")
    stream = pylog_stream(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    pylog_store.append("orders", [{"value": "a"}])
    assert stream.step() == []
    assert pylog_store.read("copy").read_all()["value"].to_pylist() == [b"a"]


@only_long("a query of its own")
def test_a_failed_step_is_repeated_by_the_next_one(orders, pylog_store, pylog_stream, tmp_path):
    (tmp_path / "poison").touch()

    def take(frame, number):
        if (tmp_path / "poison").exists():
            raise ValueError("poisoned")
        taken.append((number, [row.value for row in frame.collect()]))

    taken = []
    writer = orders.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = pylog_stream(writer)
    pylog_store.append("orders", [{"value": "a"}])
    with pytest.raises(StreamingQueryException, match="poisoned"):
        stream.step()
    (tmp_path / "poison").unlink()
    pylog_store.append("orders", [{"value": "b"}])
    stream.step()
    stream.step()
    assert taken == [(0, ["a"]), (1, ["b"])]
