"""No value harms its neighbours or the process: it is a misfit with a line for a reason, in bounded memory."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tracemalloc
from textwrap import dedent

import pyarrow as pa
import pytest

from logstore.errors import InvalidRequestError
from logstore.schemas import ddl
from logstore.schemas.avro.format import AvroFormat, ConfluentAvroFormat
from logstore.schemas.avro.schema import parse
from logstore.schemas.formats import JsonFormat
from logstore.schemas.layout import Mode
from logstore.schemas.typed import TypedRecords
from tests.support.repeats import only_long

MIB = 1024 * 1024
COLUMNS = ddl.parse(
    "n bigint, d decimal(6,2), f double, s string, at timestamp, tags array<string>, more map<string,int>"
)
JSON_GOOD = b'{"n": 1, "d": 1.5, "s": "a", "tags": ["x"], "more": {"a": 1}}'
DEEP = 10_000


def varlong(number):
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def json_of(name, text):
    return b'{"%s": %s}' % (name.encode(), text if isinstance(text, bytes) else text.encode())


JSON_BAD = {
    "truncated": (JSON_GOOD[:-3], "not JSON"),
    "truncated in a letter": (b'{"s": "\xc3', "not UTF-8"),
    "nested deep": (json_of("tags", b"[" * DEEP + b"]" * DEEP), "nested too deeply"),
    "nested deep, undeclared": (json_of("x", b'{"a":' * DEEP + b"1" + b"}" * DEEP), "nested too deeply"),
    "nested deep and open": (b'{"x": ' + b"[" * DEEP, "nested too deeply"),
    "another magic": (b"\x01\x00\x00\x00\x01" + JSON_GOOD, "not JSON"),
    "another type": (json_of("s", "1"), "s: 1 is no string"),
    "NaN": (json_of("f", "NaN"), "NaN is no JSON"),
    "infinite": (json_of("f", "-Infinity"), "-Infinity is no JSON"),
    "a decimal too large": (json_of("d", "12345.5"), "d: 12345.5 does not fit decimal(6,2)"),
    "a decimal too precise": (json_of("d", '"0.125"'), 'd: "0.125" does not fit decimal(6,2)'),
    "a decimal of a long exponent": (json_of("d", "1e999999999"), "d: "),
    "an integer too large": (json_of("n", "9223372036854775808"), "n: 9223372036854775808 does not fit bigint"),
    "an integer of many digits": (json_of("n", "1" * 5000), "Exceeds the limit"),
    "invalid UTF-8": (json_of("s", b'"\xff"'), "not UTF-8: byte 7"),
    "half of a pair": (json_of("s", '"\\ud800"'), 's: "\\ud800" does not fit string'),
    "half of a pair in a key": (json_of("more", '{"\\ud800": 1.5}'), "more.\\ud800: 1.5 is no int"),
    "a key of two lines": (json_of("more", '{"a\\nb": 1.5}'), "more.a\\nb: 1.5 is no int"),
    "a long key": (json_of("more", '{"%s": 1.5}' % ("a" * 100_000)), "more.aaa"),
    "a day that is none": (json_of("at", '"2023-02-29T00:00:00Z"'), "at: "),
    "a time before all": (json_of("at", '"0001-01-01T00:00:00+02:00"'), "at: "),
    "no object": (b"[]", "not an object but []"),
    "two objects": (b"{}{}", "not JSON"),
    "nothing": (b"", "not JSON"),
}


@pytest.mark.parametrize("count", [1, 100], ids=["alone", "in bulk"])
@pytest.mark.parametrize(("value", "reason"), JSON_BAD.values(), ids=JSON_BAD)
def test_json_that_does_not_fit_is_one_line_and_leaves_its_neighbours(value, reason, count):
    read(JsonFormat(COLUMNS), JSON_GOOD, value, reason, count)


@pytest.mark.parametrize("count", [1, 100], ids=["alone", "in bulk"])
def test_of_members_of_one_name_the_last_counts(count):
    twice = b'{"n": 1, "more": {"a": 1, "a": 2}, "n": 2, "more": {"a": 3, "b": 1, "a": 4}}'
    found = JsonFormat(COLUMNS).decode(pa.array([JSON_GOOD] * count + [twice]))
    assert not found.reasons
    assert (found.columns[0][count].as_py(), found.columns[6][count].as_py()) == (2, [("a", 4), ("b", 1)])


@pytest.mark.parametrize("count", [1, 100], ids=["alone", "in bulk"])
def test_an_undeclared_name_that_is_no_text_is_rescued_as_it_was_escaped(count):
    odd = b'{"n": 1, "\\ud800": "\\ud800", "\\u00e4": 2}'
    found = JsonFormat((*COLUMNS[:1], pa.field("_rescued", pa.string()))).decode(pa.array([b"{}"] * count + [odd]))
    assert found.columns[1][count].as_py() == '{"\\ud800":"\\ud800","ä":2}'


SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "s", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
    ],
}
AVRO_HEAD = varlong(1) + b"a" + varlong(1)
AVRO_GOOD = AVRO_HEAD + varlong(1) + varlong(7) + varlong(1) + b"\x05" + b"\x00"


def tags(data):
    return AVRO_GOOD[:-1] + data


AVRO_BAD = {
    "truncated": (AVRO_GOOD[:-2], "d: "),
    "nothing": (b"", "s: the data ends too early"),
    "bytes left over": (AVRO_GOOD + b"\x00", "bytes are left after the data"),
    "an enum's number": (varlong(1) + b"a" + varlong(2), "kind: the enum has no symbol of this number"),
    "an enum's negative number": (varlong(1) + b"a" + varlong(-1), "kind: the enum has no symbol of this number"),
    "a branch": (AVRO_HEAD + varlong(3), "either: the union has no branch of this number"),
    "a negative branch": (AVRO_HEAD + varlong(-1), "either: the union has no branch of this number"),
    "a decimal too large": (AVRO_HEAD + b"\x00" + varlong(4) + b"\x7f\xff\xff\xff" + b"\x00", "d: the decimal"),
    "a decimal of many bytes": (AVRO_HEAD + b"\x00" + varlong(90) + b"\x7f" * 90 + b"\x00", "d: the decimal"),
    "invalid UTF-8": (varlong(1) + b"\xff", "s: the text is not UTF-8"),
    "a negative length": (varlong(-5), "s: a length is negative"),
    "an absurd length": (varlong(2**60), "s: a length is negative, or beyond the end of the data"),
    "a number without an end": (b"\xff" * 11, "s: the data ends too early"),
    "an absurd count": (tags(varlong(2**60)), "tags: a block has more items than"),
    "a negative count": (tags(varlong(-(2**62)) + varlong(2)), "tags: a block has more items than"),
    "the least count": (tags(varlong(-(2**63)) + varlong(2)), "tags: a block has more items than"),
    "a block beyond the end": (tags(varlong(-1) + varlong(2**40)), "tags: a block has more items than"),
    "a block of negative size": (tags(varlong(-1) + varlong(-1)), "tags: a block has more items than"),
    "blocks inside of blocks": (tags(varlong(1) + varlong(2**50)), "tags[]: a block has more items than"),
}


@pytest.mark.parametrize(("value", "reason"), AVRO_BAD.values(), ids=AVRO_BAD)
def test_avro_that_does_not_fit_is_one_line_and_leaves_its_neighbours(value, reason):
    read(AvroFormat(parse(json.dumps(SCHEMA))), AVRO_GOOD, value, reason)


WIRE_BAD = {
    "another magic": (b"\x01\x00\x00\x00\x01" + AVRO_GOOD, "no schema id: the first byte is not 0"),
    "a header cut off": (b"\x00\x00\x00", "too short for a schema id"),
    "nothing": (b"", "too short for a schema id"),
    "an unknown id": (struct.pack(">bI", 0, 99) + AVRO_GOOD, "schema id 99: no schema has this id"),
    "an id beyond all": (b"\x00\xff\xff\xff\xff" + AVRO_GOOD, "schema id 4294967295: no schema has this id"),
    "a schema whose references are a cycle": (struct.pack(">bI", 0, 2), "schema id 2: "),
    "a schema that is none": (struct.pack(">bI", 0, 3), "schema id 3: "),
    "a schema nested deep": (struct.pack(">bI", 0, 4), "schema id 4: "),
}


class Referring:
    """A registered text, whose references name it."""

    def __init__(self, text, references=()):
        self.text, self.references = text, references


def registered(schema_id):
    """The schema of an id, as a registry has it."""
    from logstore.schemas.subjects import Reference

    circle = (Reference("R", "circle", 1),)
    texts = {
        1: json.dumps(SCHEMA),
        3: '{"type": "none"}',
        4: '{"type": "array", "items": ' * DEEP + '"int"' + "}" * DEEP,
    }
    if schema_id == 2:
        return parse('"R"', circle, lambda reference: Referring('"R"', circle))
    if schema_id not in texts:
        raise InvalidRequestError("no schema has this id")
    return parse(texts[schema_id])


@pytest.mark.parametrize(("value", "reason"), WIRE_BAD.values(), ids=WIRE_BAD)
def test_a_value_without_a_schema_of_its_own_is_one_line_and_leaves_its_neighbours(value, reason):
    confluent = ConfluentAvroFormat(parse(json.dumps(SCHEMA)), registered)
    read(confluent, struct.pack(">bI", 0, 1) + AVRO_GOOD, value, reason)


def read(form, good, bad, reason, count=1):
    topic = TypedRecords(columns=form.fields, value=form, mode=Mode.DROPMALFORMED)
    values = [good] * count + [bad] + [good] * count
    columns = [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())]
    found = topic.decode(pa.RecordBatch.from_arrays(columns, ["value", "offset"]), "t", 0)
    assert list(found.misfits) == [count]
    assert found.misfits[count].startswith(f"value: {reason}")
    assert "\n" not in found.misfits[count]
    assert len(found.misfits[count].encode()) < 300
    alone = pa.RecordBatch.from_arrays([column.slice(0, 1) for column in columns], ["value", "offset"])
    [expected] = topic.decode(alone, "t", 0).rows.to_pylist()
    assert found.rows.to_pylist() == [expected] * 2 * count


LARGE = """
    import json, pathlib, re, sys
    import pyarrow as pa
    from logstore.schemas.avro.format import AvroFormat
    from logstore.schemas.avro.schema import parse
    from logstore.schemas import ddl
    from logstore.schemas.formats import JsonFormat

    size = 100 * 1024 * 1024
    schema = parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}))
    avro, jsons = AvroFormat(schema), JsonFormat(ddl.parse("s string, n int"))
    head = b"\\x80\\x80\\x80\\x64"  # the length
    form, good, large = {
        "json": lambda: (jsons, b'{"s": "a"}', b'{"s": "' + b"x" * size + b'"}'),
        "json cut off": lambda: (jsons, b'{"s": "a"}', b'{"s": "' + b"x" * size),
        "json of another type": lambda: (jsons, b'{"s": "a"}', b'{"n": "' + b"x" * size + b'"}'),
        "json of undeclared items": lambda: (jsons, b'{"s": "a"}', b'{"x": [' + b"1," * (size // 2) + b"1]}"),
        "avro": lambda: (avro, b"\\x02a", head + b"x" * size),
        "avro cut off": lambda: (avro, b"\\x02a", head + b"x" * (size - 1)),
        "avro that is no text": lambda: (avro, b"\\x02a", head + b"x" * (size - 1) + b"\\xff"),
    }[sys.argv[1]]()
    array = pa.array([good] * 100 + [large] + [good] * 100, pa.binary())
    form.decode(array.slice(0, 70))
    del large
    process = pathlib.Path("/proc/self")
    def kib(name):
        return int(re.search(name + r":\\s+(\\d+) kB", (process / "status").read_text())[1])
    (process / "clear_refs").write_text("5")  # the peak begins here
    before = kib("VmRSS")
    found = form.decode(array)
    more = kib("VmHWM") - before
    assert len(found.good) + len(found.reasons) == 201 and len(found.good) >= 200, found.reasons
    assert all(len(reason) < 300 for reason in found.reasons.values())
    print(len(found.reasons), more // 1024)
"""


@only_long("seven processes that read 100 MiB each")
@pytest.mark.parametrize(
    ("what", "misfits"),
    [
        ("json", 0),
        ("json cut off", 1),
        ("json of another type", 1),
        ("json of undeclared items", 0),
        ("avro", 0),
        ("avro cut off", 1),
        ("avro that is no text", 1),
    ],
)
def test_a_value_of_100_mib_takes_a_few_times_its_size(what, misfits):
    found = subprocess.run(
        [sys.executable, "-c", dedent(LARGE), what], capture_output=True, text=True, check=False, timeout=240
    )
    assert found.returncode == 0, found.stderr
    count, mib = map(int, found.stdout.split())
    assert count == misfits
    assert mib < 400


@pytest.mark.parametrize("others", [[], [b'{"n": "x"}'], [b'{"y": "\xff"}']], ids=["alone", "type", "text"])
def test_a_large_value_among_few_is_no_objects_of_python(others):
    form = JsonFormat(ddl.parse("n int, x array<array<int>>, days array<date>"))
    large = b'{"x": [%s[1]]}' % (b"[]," * 500_000)
    form.decode(pa.array([large, *others], pa.binary()))
    tracemalloc.start()
    try:
        found = form.decode(pa.array([large, *others], pa.binary()))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found.reasons) == list(range(1, 1 + len(others)))
    assert len(found.columns[1][0]) == 500_001
    size = len(large)
    assert peak_bytes < 18 * size


def test_absurd_lengths_take_no_memory():
    form = AvroFormat(parse(json.dumps(SCHEMA)))
    bad = [value for name, (value, _) in AVRO_BAD.items() if "absurd" in name or "count" in name or "block" in name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = form.decode(pa.array(bad * 1000, pa.binary()))
    assert len(found.reasons) == len(bad) * 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * MIB // 1024
