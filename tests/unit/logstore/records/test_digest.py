"""The digest of rows: the same for the same rows in any order and grouping, another for any other rows."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.records.rows import Rows

FIELD = st.none() | st.binary(max_size=20)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def digest(data: pa.Table, topic: str = "t", now_ms: int = 1) -> int:
    return Rows(data, now_ms=now_ms).digest(topic)


def table(pairs):
    keys, values = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


@given(st.lists(st.tuples(FIELD, FIELD), max_size=12), st.randoms(), st.integers(0, 12))
def test_order_and_grouping_do_not_matter(pairs, random, cut):
    mixed = random.sample(pairs, len(pairs))
    parts = [digest(table(mixed[:cut])), digest(table(mixed[cut:]))]
    assert sum(parts) % 2**64 == digest(table(pairs))


@given(st.tuples(FIELD, FIELD), st.tuples(FIELD, FIELD))
def test_other_rows_have_another_digest(one, other):
    assert (digest(table([one])) == digest(table([other]))) == (one == other)


def test_a_row_that_is_there_twice_counts_twice():
    assert digest(table([(b"k", b"v")] * 2)) != digest(table([(b"k", b"v")]))


def test_types_and_chunks_do_not_matter():
    text = pa.table({"value": pa.chunked_array([["a", "b"], [], ["c"]])})
    binary = pa.table({"value": pa.array([b"c", b"a", b"b"], pa.large_binary())})
    assert digest(text) == digest(binary)


def test_the_topic_counts():
    assert digest(table([(b"k", b"v")]), "t") != digest(table([(b"k", b"v")]), "u")


def test_the_time_of_the_append_does_not_count():
    assert digest(table([(b"k", b"v")]), now_ms=1) == digest(table([(b"k", b"v")]), now_ms=2)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("timestamp", pa.array([5, None]), pa.array([6, None])),
        ("partition", pa.array([0, None]), pa.array([1, None])),
        ("headers", pa.array([[("a", b"b")], []], HEADERS), pa.array([[("a", b"c")], []], HEADERS)),
        ("headers", pa.array([[("a", b"b")], []], HEADERS), pa.array([[], [("a", b"b")]], HEADERS)),
    ],
)
def test_what_a_column_gives_counts(name, one, other):
    values = {"value": [b"x", b"y"]}
    first, second = (digest(pa.table({**values, name: column})) for column in (one, other))
    assert first != second
    assert first == digest(pa.table({**values, name: one}), now_ms=9)
