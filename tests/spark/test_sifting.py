"""`datasource.sift`: rows and dead letters of a micro-batch are in their topics once, and together."""

from __future__ import annotations

import pytest

import datasource
from logstore import InvalidConfigError, InvalidRequestError, UnknownTopicError
from tests.support.repeats import only_long

pytestmark = [pytest.mark.spark, only_long("streams")]

VALUES = [
    '{"user":"a","n":1}',
    "bad",
    '{"user":"b","n":2}',
    '{"user":"c","n":"x"}',
    '{"user":"d","n":4}',
    '{"user":"e","n":5}',
]
SCHEMA = "user string, n int, _offset bigint"


class Query:
    """A query that doubles what fits, in batches of three records."""

    def __init__(self, spark, topics, checkpoint) -> None:
        self.spark, self.topics, self.checkpoint = spark, topics, checkpoint

    def stream(self, **more):
        source = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
        options = self.topics.options | source | {"includeHeaders": "true"} | more
        return self.spark.readStream.format("pylog").options(**options).load()

    def sift(self, stream=None, **more):
        given = {"schema": SCHEMA, "topic": "out", "dlq_topic": "sifted-out", "checkpoint": self.checkpoint} | more
        place = self.topics.location.path or self.topics.location.bootstrap
        return datasource.sift(self.stream() if stream is None else stream, place, **given)

    def run(self, **more):
        query = self.sift(rows=lambda found: found.selectExpr("user", "n * 2 AS n"), **more)
        assert query.trigger(availableNow=True).start().awaitTermination(120)

    def records(self, topic):
        options = self.topics.options | {"subscribe": topic, "includeHeaders": "true"}
        return self.spark.read.format("pylog").options(**options).load().orderBy("partition", "offset").collect()

    def forget(self, number):
        """Pretend that the driver died between the commit of this batch and Spark's own."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark, topics, tmp_path):
    topics.create("in")
    topics.create("out")
    return Query(spark, topics, tmp_path / "checkpoint")


@pytest.mark.parametrize("topics", ["directory", "cluster"], indirect=True)
def test_rows_and_dead_letters_are_there_once_also_if_a_batch_comes_again(query, topics):
    topics.append("in", VALUES)
    query.run()
    for number in (1, 1):
        query.forget(number)
        query.run()
    assert [row.value.decode() for row in query.records("out")] == [
        '{"user":"a","n":2}', '{"user":"b","n":4}', '{"user":"d","n":8}', '{"user":"e","n":10}'
    ]  # fmt: skip
    letters = query.records("sifted-out")
    assert sorted(letter.value.decode() for letter in letters) == ["bad", '{"user":"c","n":"x"}']
    assert {letter.key.decode().split("|", 1)[1] for letter in letters} == {"in|0|1", "in|0|3"}
    reasons = {pair.value.decode() for letter in letters for pair in letter.headers if pair.key == "dlq.reason"}
    assert reasons == {"value: not JSON: Expecting value: line 1 column 1 (char 0)", 'value: n: "x" is no int'}


def test_a_batch_that_cannot_be_written_leaves_neither_rows_nor_dead_letters(query, topics):
    topics.append("in", VALUES)
    with pytest.raises(Exception, match="NaN is no JSON"):
        query.sift(rows=lambda rows: rows.selectExpr("double('NaN') AS n")).start().awaitTermination(120)
    assert query.records("out") == query.records("sifted-out") == []


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"topic": "none"}, UnknownTopicError, "none"),
        ({"dlq_topic": "out"}, InvalidConfigError, "choose another"),
        ({"schema": "user strin"}, InvalidRequestError, "'strin' is no type"),
        ({"key.format": "json"}, InvalidConfigError, "key.fields"),
        ({"mode": "PERMISSIVE"}, InvalidConfigError, "mode"),
        ({"write": {"compression": "none"}}, InvalidConfigError, "typed=True"),
    ],
)
def test_a_mistake_is_told_at_once(query, more, error, said):
    with pytest.raises(error, match=said):
        query.sift(**more)


def test_a_stream_without_headers_is_refused(query):
    with pytest.raises(InvalidRequestError, match="includeHeaders=true"):
        query.sift(query.stream(includeHeaders="false"))
