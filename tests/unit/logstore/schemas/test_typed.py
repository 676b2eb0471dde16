"""Records are rows of columns and back: keys and values side by side, misfits by their mode, metadata on request."""

from __future__ import annotations

import cProfile
import pstats
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from logstore.errors import InvalidConfigError, InvalidRecordError
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas import ddl, typed
from logstore.schemas.formats import JsonFormat, RawFormat
from logstore.schemas.layout import Mode
from logstore.schemas.misfits import MisfitError, UnwritableError
from logstore.schemas.typed import KEY, METADATA, TypedRecords

USER, AMOUNT, NOTE = ddl.parse("user string, amount decimal(10,2), note string")
CORRUPT = pa.field("_corrupt_record", pa.string())
SHOWN = tuple(pa.field(name, kind) for name, (_, kind) in METADATA.items())
NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


def topic(*columns, **options):
    options = {"key": RawFormat((USER,)), "value": JsonFormat((AMOUNT, NOTE))} | options
    return TypedRecords(columns=columns or (USER, AMOUNT, NOTE), **options)


def records(*pairs, names=None):
    rows = [
        {"key": key, "value": value, "offset": 10 + i, "timestamp": NOON, "timestampType": 0, "headers": []}
        for i, (key, value) in enumerate(pairs)
    ]
    batch = pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)
    return batch if names is None else batch.select(names)


def rows_of(found):
    return [tuple(row.values()) for row in found.rows.to_pylist()]


GOOD, CUT = (b"u1", b'{"amount": 1.5, "note": "x"}'), (b"u2", b'{"amount": 1')


def test_key_and_value_are_columns_side_by_side_and_a_tombstone_has_its_key():
    found = topic().decode(records(GOOD, (b"u2", None), (None, b"{}"), names=topic().stored), "t", 0)
    assert [[str(cell) for cell in row] for row in rows_of(found)] == [
        ["u1", "1.50", "x"],
        ["u2", "None", "None"],
        ["None", "None", "None"],
    ]
    assert found.rows.schema.field("user").nullable


def test_a_column_of_both_is_read_from_the_value_and_of_a_tombstone_from_the_key():
    both = topic(USER, NOTE, value=JsonFormat((USER, NOTE)))
    found = both.decode(records((b"k", b'{"user": "v"}'), (b"k", b"{}"), (b"k", None)), "t", 0)
    assert rows_of(found) == [("v", None), (None, None), ("k", None)]


def test_ten_times_as_many_columns_are_ten_times_as_much_work():
    calls = []
    for count in (50, 50, 500):  # the first loads what is needed
        fields = ddl.parse(", ".join(f"c{number} int" for number in range(count)))
        wide = topic(USER, *fields, value=JsonFormat(fields))
        rows = pa.RecordBatch.from_pylist([{"user": "a", "c1": 1}], pa.schema([USER, *fields]))
        with cProfile.Profile() as profile:
            stored = wide.encode(rows)
            [batch] = stored.append_column("offset", pa.array([0], pa.int64())).to_batches()
            assert wide.decode(batch, "t", 0).rows.equals(rows)
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[2] < 15 * calls[1]


def test_only_columns_that_are_needed_are_asked_for():
    assert topic().stored == ["key", "value", "offset"]
    assert TypedRecords(columns=(NOTE,), value=JsonFormat((NOTE,))).stored == ["value", "offset"]
    assert TypedRecords(columns=(CORRUPT, NOTE), value=JsonFormat((NOTE,))).stored == ["key", "value", "offset"]
    assert topic(*SHOWN, NOTE).stored == ["key", "value", "offset", "timestamp", "headers"]


def test_failfast_names_place_and_reason_of_the_first_misfit():
    with pytest.raises(MisfitError) as error:
        topic().decode(records(GOOD, (b"u2", b'{"amount": "x"}'), CUT), "orders", 3)
    assert str(error.value).startswith('orders-3 at offset 11: value: amount: "x" is no decimal(10,2); to go on')
    assert (error.value.topic, error.value.partition, error.value.offset) == ("orders", 3, 11)


def test_dropmalformed_leaves_misfits_out_and_counts_them():
    dropping = topic(USER, NOTE, *SHOWN[:3], mode=Mode.DROPMALFORMED)
    found = dropping.decode(records(CUT, GOOD, (b"\xff", b"{}"), GOOD), "t", 2)
    assert rows_of(found) == [("u1", "x", "t", 2, 11), ("u1", "x", "t", 2, 13)]
    assert set(found.misfits) == {0, 2}
    assert found.misfits[2] == "key: user: not UTF-8"


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_permissive_keeps_the_bytes_of_a_misfit_and_what_fits_beside_it(kind):
    permissive = topic(USER, NOTE, CORRUPT.with_type(kind), mode=Mode.PERMISSIVE)
    found = permissive.decode(records(GOOD, CUT, (b"a\xff", b'{"note": "n"}'), (b"\xff", b"\xfe")), "t", 0)
    as_kind = bytes if kind == pa.binary() else lambda raw: raw.decode(errors="replace")
    assert rows_of(found) == [
        ("u1", "x", None),
        ("u2", None, as_kind(CUT[1])),
        (None, "n", as_kind(b"a\xff")),
        (None, None, as_kind(b"\xfe")),
    ]
    assert set(found.misfits) == {1, 2, 3}


def test_a_table_that_was_read_is_written_as_it_was():
    both = topic(*SHOWN, USER, AMOUNT, NOTE)
    stored = records((b"u1", b'{"amount":1.50,"note":"x"}'), (b"u2", None), (None, b"{}"))
    written = both.encode(both.decode(stored, "t", 1).rows)
    assert written.schema.names == ["headers", "timestamp", "partition", "key", "value"]
    assert written.column("partition").to_pylist() == [1, 1, 1]
    for name in ("key", "value", "timestamp", "headers"):
        assert written.column(name).to_pylist() == stored.column(name).to_pylist(), name


def test_bytes_of_keys_without_a_format_are_written_again():
    keyless = topic(NOTE, pa.field(KEY, pa.binary()), key=None, value=JsonFormat((NOTE,)))
    rows = pa.table({"note": ["a", None, None], KEY: [b"k", b"k", None]})
    assert keyless.encode(rows).to_pylist() == [
        {"key": b"k", "value": b'{"note":"a"}'},
        {"key": b"k", "value": None},
        {"key": None, "value": b"{}"},
    ]


def test_a_prefix_tells_columns_of_the_key_from_those_of_the_value():
    key, value = JsonFormat((pa.field("id", pa.int64()),)), JsonFormat((pa.field("id", pa.string()),))
    columns = (pa.field("key_id", pa.int64()), pa.field("id", pa.string()))
    prefixed = TypedRecords(columns=columns, key=key, value=value, key_prefix="key_")
    stored = records((b'{"id":7}', b'{"id":"x"}'))
    found = prefixed.decode(stored, "t", 0).rows
    assert found.to_pylist() == [{"key_id": 7, "id": "x"}]
    assert prefixed.encode(found).to_pylist() == [{"key": b'{"id":7}', "value": b'{"id":"x"}'}]


def test_missing_columns_are_null_unless_declared_otherwise():
    assert topic().encode(pa.table({"note": ["a"]})).to_pylist() == [{"key": None, "value": b'{"note":"a"}'}]
    strict = topic(value=JsonFormat((AMOUNT.with_nullable(False), NOTE)))
    with pytest.raises(UnwritableError, match="row 0: amount: missing, and declared NOT NULL"):
        strict.encode(pa.table({"note": ["a"]}))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"users": ["a"]}, "the topic has no column 'users'; did you mean 'user'"),
        ({"amount": ["1.5"]}, r"column 'amount' is string, and the topic has decimal\(10,2\)"),
        ({"note": ["a"], "_corrupt_record": ["{"]}, "row 0: _corrupt_record: this was a misfit"),
    ],
    ids=str,
)
def test_rows_of_other_columns_are_refused(rows, message):
    with pytest.raises(InvalidRecordError, match=message):
        topic(USER, CORRUPT).encode(pa.table(rows))


def test_a_row_that_does_not_fit_has_its_number_in_the_whole_table(monkeypatch):
    monkeypatch.setattr(typed, "PIECE_ROWS", 4)
    halves = TypedRecords(columns=(f := pa.field("f", pa.float64()),), value=JsonFormat((f,)))
    rows = pa.table({"f": [1.0] * 9 + [float("nan")] + [1.0] * 5})
    with pytest.raises(UnwritableError, match="row 9: f: NaN is no JSON"):
        halves.encode(rows)
    assert halves.encode(rows.slice(0, 9)).num_rows == 9
    assert halves.encode(rows.slice(0, 0)).schema.names == ["value"]
    keyed = topic(USER, f, value=JsonFormat((f,)))
    with pytest.raises(UnwritableError, match="row 2: f: NaN is no JSON"):  # behind a tombstone
        keyed.encode(pa.table({"user": ["a", "b", "c"], "f": [1.0, None, float("nan")]}))


def test_columns_that_are_nowhere_are_refused():
    with pytest.raises(InvalidConfigError, match="column 'x' is neither in the key nor in the value"):
        topic(pa.field("x", pa.int8()))
    with pytest.raises(InvalidConfigError, match="the value has no format"):
        topic(USER, value=None).encode(pa.table({"user": ["a"]}))
