"""The newest row of each key in columns of Arrow, against a dictionary."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logstore.records.key_map import KeyMap, Share
from logstore.records.schema import BINARY

# Some keys are alike but for their length, a byte at the end, or in a word of eight.
KEYS = [None, b"", b"\0", b"\0\0", b"a", *(b"key-%04d" % n for n in range(6)), b"x" * 40, b"x" * 39 + b"y"]
ROWS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"", b"v"])), max_size=90)


def batch(rows, first: int, *, cut: int = 0) -> pa.RecordBatch:
    """Rows of ascending offsets, in columns that begin `cut` rows into their buffers."""
    rows = [(b"other", None)] * cut + list(rows)
    offsets = pa.array(range(first - cut, first - cut + len(rows)), pa.int64())
    columns = [pa.array([key for key, _ in rows], BINARY), pa.array([value for _, value in rows], BINARY), offsets]
    return pa.RecordBatch.from_arrays(columns, ["key", "value", "offset"]).slice(cut)


def newest(rows, *, without=()) -> list[int]:
    """The offsets of the last row of each key, unless it has no value or its key is one of these."""
    last = {key: (offset, value) for offset, (key, value) in enumerate(rows) if key is not None}
    return sorted(offset for key, (offset, value) in last.items() if value is not None and key not in without)


@given(rows=ROWS, later=ROWS, cut=st.integers(0, 9), has_bitmap=st.booleans(), halves=st.booleans())
def test_the_newest_rows_are_those_that_a_dictionary_keeps(rows, later, cut, has_bitmap, halves):
    shares = Share().halves() if halves else (Share(),)
    found = []
    for share in shares:
        keys = KeyMap(1 << 16)
        for some, first in ((later, 1000), (rows, 0)):
            given_rows = batch(some, first, cut=cut)
            keys.watch(first, first + len(some) if has_bitmap else first)
            assert keys.collect_rows(given_rows, share)
            found += keys.newest(given_rows, share).column("offset").to_pylist()
    older = newest(rows, without={key for key, _ in later})
    assert sorted(found) == older + [1000 + offset for offset in newest(later)]


def test_a_map_grows_with_its_keys_and_says_when_it_is_full():
    rows = [(b"key-%06d" % n, b"v") for n in range(5000)]
    large, small = KeyMap(1 << 20), KeyMap(1 << 17)
    assert large.collect_rows(batch(rows, 0), Share())
    assert large.keys == 5000
    assert large.newest(batch(rows, 0), Share()).num_rows == 5000
    assert not small.collect_rows(batch(rows, 0), Share())
    half, other = Share().halves()
    kept = []
    for share in (*half.halves(), *other.halves()):
        small.clear(0, 0, expected=5000)
        assert small.collect_rows(batch(rows, 0), share)
        kept += small.newest(batch(rows, 0), share).column("offset").to_pylist()
    assert sorted(kept) == list(range(5000))
