import gc
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptLogError, UnreadableBatchError
from logstore.records import arrow, batch, decoding
from logstore.records.arrow import decode, decode_pieces
from logstore.records.batch import Record, build
from logstore.records.compression import Codec, compress
from logstore.records.schema import RECORD_SCHEMA
from tests.support.poison import POISON
from tests.support.records import INT64, numbered, record_lists, records_of

END = 2**63 - 1


def log_of(records, sizes, codecs):
    """The records as consecutive batches of these sizes and codecs, in turn."""
    data, at, n = bytearray(), 0, 0
    while at < len(records):
        size, codec = sizes[n % len(sizes)], codecs[n % len(codecs)]
        data += build(records[at : at + size], codec=codec)
        at, n = at + size, n + 1
    return data


@given(
    record_lists(INT64),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.lists(st.sampled_from(Codec), min_size=1, max_size=4),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_exactly_the_records_in_the_range_come_out(records, sizes, codecs, start, end):
    decoded = decode(log_of(records, sizes, codecs), start=start, end=end)
    assert decoded.schema.equals(RECORD_SCHEMA)
    assert records_of(decoded) == records[start:end]


@given(record_lists(), st.lists(st.sampled_from(RECORD_SCHEMA.names), unique=True))
def test_only_the_columns_asked_for_come_in_their_order(records, columns):
    data = log_of(records, [4], [Codec.NONE, Codec.LZ4])
    every = decode(data, start=0, end=END)
    some = decode(data, start=0, end=END, columns=columns)
    assert some.schema.names == columns
    assert some.num_rows == (len(records) if columns else 0)
    for name in columns:
        assert some.column(name).equals(every.column(name))


@pytest.mark.parametrize("columns", [["offset"], ["timestamp", "timestampType"]])
def test_values_that_nobody_asked_for_are_not_copied(columns, monkeypatch):
    data = build([Record(n, n, b"k", b"v" * 10_000) for n in range(100)])
    taken = list[int]()
    allocate = pa.allocate_buffer
    monkeypatch.setattr(pa, "allocate_buffer", lambda size, **how: taken.append(size) or allocate(size, **how))
    assert decode(data, start=0, end=END, columns=columns).num_rows == 100
    assert sum(taken) < len(data) / 5


def test_many_batches_of_one_record_are_one_piece():
    records = numbered(5000)
    (piece,) = decode_pieces(log_of(records, [1], [Codec.NONE]), start=10, end=4990)
    assert records_of(piece) == records[10:4990]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda d: memoryview(bytearray(d))[:]])
def test_any_buffer_will_do(kind):
    assert decode(kind(bytes(build(numbered(3)))), start=0, end=3).num_rows == 3


def test_no_data_gives_an_empty_batch():
    empty = decode(b"", start=0, end=END)
    assert empty.num_rows == 0
    assert empty.schema.equals(RECORD_SCHEMA)
    assert records_of(empty) == []


def test_control_batches_are_left_out():
    marker = build([Record(3, 0, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=batch.CONTROL | batch.TRANSACTIONAL)
    data = build(numbered(3)) + marker + build(numbered(2, start=4))
    assert decode(data, start=0, end=END).column("offset").to_pylist() == [0, 1, 2, 4, 5]


def test_gaps_of_compaction_stay_gaps():
    kept = [r for r in numbered(20) if r.offset % 7 == 1]
    data = build(kept[:2]) + build([kept[2]._replace(offset=40)])
    assert decode(data, start=2, end=END).column("offset").to_pylist() == [8, 40]


@pytest.mark.parametrize("delta", [63, 64, 8191, 8192, 2**20, 2**27 - 1, 2**27, 2**31 - 1])
def test_offsets_of_one_batch_may_lie_far_apart(delta):
    records = [Record(0, 0, None, b"a"), Record(delta, 0, None, b"b")]
    assert records_of(decode(build(records), start=0, end=END)) == records


def test_an_empty_batch_holds_its_offsets_only():
    data = bytearray(build(numbered(1))[:61])
    header = batch.header_at(build(numbered(1)))._replace(length=49, count=0, last_offset_delta=9)
    batch.write_header(data, 0, header)
    both = data + build(numbered(1, start=10))
    assert decode(both, start=0, end=END).column("offset").to_pylist() == [10]


def test_append_time_is_each_records_timestamp():
    create, append = build(numbered(2)), build(numbered(2, start=2))
    batch.stamp_append_time(append, 0, 99)
    decoded = decode(create + append, start=0, end=END)
    assert decoded.column("timestampType").to_pylist() == [0, 0, 1, 1]
    times = decoded.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [1_700_000_000_000, 1_700_000_000_001, 99, 99]


def test_batches_without_a_leader_epoch_are_read():
    data = build(numbered(2), leader_epoch=-1)
    assert batch.header_at(data).leader_epoch == -1
    assert records_of(decode(data, start=0, end=END)) == numbered(2)


def test_columns_without_nulls_have_no_bitmap():
    decoded = decode(build([Record(0, 0, b"k", b"v")]), start=0, end=END)
    assert decoded.column("key").buffers()[0] is None
    assert decoded.column("value").buffers()[0] is None


def test_header_names_that_are_not_utf8_are_replaced_as_in_java():
    data = build([Record(0, 0, None, b"", (("abc", b"1"),))])
    at = data.index(b"abc")
    data[at : at + 3] = b"a\xffc"
    batch.seal(data, 0, len(data))
    (record,) = records_of(decode(data, start=0, end=END))
    assert record.headers == (("a\ufffdc", b"1"),)
    assert list(batch.records(data)) == [record]


def test_an_error_says_where():
    data = build(numbered(2)) * 2
    batch.stamp(data, len(data) // 2, 2, 0)
    data[-1] ^= 1
    with pytest.raises(CorruptLogError, match="CRC-32C") as caught:
        decode(data, start=0, end=END, where=("some.log", 1000))
    assert (caught.value.path, caught.value.position) == ("some.log", 1000 + len(data) // 2)


def test_the_first_of_two_unreadable_batches_is_named_with_its_place():
    first = build([Record(0, 1000, None, b"sound")])
    poison, packed = bytearray(POISON["garbage"]), bytearray(POISON["no gzip"])
    batch.stamp(poison, 0, 1, 0)
    batch.stamp(packed, 0, 2, 0)
    data = bytes(first + poison + packed)
    pieces = decode_pieces(data, start=0, end=END, where=("file", 100))
    assert next(pieces).column("value").to_pylist() == [b"sound"]
    with pytest.raises(UnreadableBatchError) as error:
        next(pieces)
    assert (error.value.path, error.value.position) == ("file", 100 + len(first))


def test_a_partial_batch_at_the_end_is_damage():
    data = build(numbered(3))
    for cut in range(1, len(data)):
        with pytest.raises(CorruptLogError):
            decode(data[:cut], start=0, end=END)


@pytest.mark.parametrize("base", [0, 1])
def test_offsets_do_not_go_back(base):
    data = build(numbered(2)) + build(numbered(2, start=2))
    batch.stamp(data, len(data) // 2, base, 0)
    with pytest.raises(CorruptLogError, match="base offset"):
        decode(data, start=0, end=END)


def test_a_batch_beyond_the_end_is_not_touched():
    data = build(numbered(2)) + build(numbered(2, start=2))
    data[-1] ^= 1
    assert decode(data, start=0, end=2).num_rows == 2


def test_what_expands_a_lot_comes_in_bounded_pieces(monkeypatch):
    monkeypatch.setattr(decoding, "PIECE_BYTES", 10_000)
    records = [Record(i, 0, None, bytes(1000)) for i in range(100)]
    for codecs in ([Codec.ZSTD], [Codec.NONE], [Codec.NONE, Codec.GZIP]):
        data = log_of(records, [5], codecs)
        pieces = list(decode_pieces(data, start=0, end=END))
        assert len(pieces) > 5
        assert max(piece.nbytes for piece in pieces) < 30_000
        assert [o for piece in pieces for o in piece.column("offset").to_pylist()] == list(range(100))
        assert decode(data, start=0, end=END).num_rows == 100


def test_a_bomb_does_not_go_off(monkeypatch):
    monkeypatch.setattr(decoding, "DECOMPRESSED_BYTES_MAX", 1_000_000)
    for codec in Codec:
        data = bytearray(build(numbered(1), codec=codec)[:61]) + compress(codec, bytes(20_000_000))
        header = batch.header_at(build(numbered(1), codec=codec))._replace(length=len(data) - 12)
        batch.write_header(data, 0, header)
        gc.collect()  # what other tests left is not given back in between
        before = pa.total_allocated_bytes()
        with pytest.raises(CorruptLogError):
            decode(data, start=0, end=END)
        assert pa.total_allocated_bytes() <= before


def outcome(data, start, end, *, is_plain):
    """The result of decoding with the kernels, or before they are loaded: the rows, or the error's text."""
    with pytest.MonkeyPatch.context() as patch:
        if is_plain:
            patch.setattr(arrow, "_KERNELS", "not loaded")
            patch.setattr(arrow, "PLAIN_CALLS_MAX", 2**63)
        try:
            return pa.Table.from_batches(decode_pieces(data, start=start, end=end))
        except CorruptLogError as error:
            return str(error)


@given(
    record_lists(INT64),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.lists(st.sampled_from(Codec), min_size=1, max_size=4),
    st.data(),
)
def test_plain_python_decodes_what_the_kernels_do(records, sizes, codecs, drawn):
    data = log_of(records, sizes, codecs)
    start, end, room = (drawn.draw(st.integers(*bounds)) for bounds in ((0, 30), (0, 30), (60, 2000)))
    if data and drawn.draw(st.booleans()):
        data[drawn.draw(st.integers(0, len(data) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))
        del data[drawn.draw(st.integers(0, len(data))) :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "PLAIN_BYTES_MAX", room)
        plain = outcome(memoryview(data).cast("b"), start, end, is_plain=True)
    compiled = outcome(data, start, end, is_plain=False)
    assert plain == compiled if isinstance(compiled, str) else plain.equals(compiled)


def test_a_few_records_need_no_kernels():
    code = (
        "import sys; from logstore.records.arrow import PLAIN_BYTES_MAX, decode_pieces, whole_bytes;"
        "from logstore.records.batch import Record, build;"
        "data = build([Record(0, 5, b'k', b'v', (('h', None),))]);"
        "whole_bytes(data, len(data));"
        "rows = next(decode_pieces(memoryview(data).cast('b'), start=0, end=9));"
        "print(rows.num_rows, {'numba', 'pandas'} & set(sys.modules));"
        "large = b''.join(bytes(build([Record(n, 5, None, bytes(9000))])) for n in range(9));"
        "pieces = decode_pieces(large, start=0, end=9);"
        "print(next(pieces).num_rows, 'numba' in sys.modules);"
        "print(sum(piece.num_rows for piece in pieces), 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 set()", "7 False", "2 True"]
