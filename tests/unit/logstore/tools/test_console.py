"""Lines to records and back."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from logstore.env import Env
from logstore.errors import DiskFullError, FailedStoreError, InvalidRecordError, InvalidRequestError
from logstore.tools.console import (
    CONSUME_PROPERTIES,
    PRODUCE_PROPERTIES,
    ConsoleRecord,
    LineParser,
    LineWriter,
    Row,
    json_formatter,
    properties,
    split_lines,
    template_formatter,
    text_formatter,
)
from tests.support.disk import Disk, StillClock


def parser(**given):
    return LineParser(PRODUCE_PROPERTIES | {name.replace("_", "."): text for name, text in given.items()})


def record(**changes):
    facts = {
        "topic": "t", "partition": 3, "offset": 42, "timestamp_ms": 1_700_000_000_123, "timestamp_type": 0,
        "headers": (("h", b"1"), ("g", None)), "key": b"k", "value": b"v",
    }  # fmt: skip
    return ConsoleRecord(**(facts | changes))


@given(st.lists(st.binary().filter(lambda b: b"\n" not in b and not b.endswith(b"\r"))), st.integers(1, 9))
def test_lines_are_the_same_however_the_stream_is_cut(lines, size):
    stream = b"".join(line + b"\n" for line in lines)
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert [line for part in split_lines(chunks) for line in part] == lines


def test_the_last_line_may_have_no_end_and_ends_may_be_of_windows():
    assert list(split_lines([b"a\r\nb", b"c"])) == [[b"a"], [b"bc"]]


def test_a_plain_line_is_the_value():
    assert parser().row(b"a\tb", 1) == Row(None, b"a\tb", ())


def test_a_key_ends_at_the_first_separator():
    assert parser(parse_key="true", key_separator=":").row(b"k:v:w", 1) == Row(b"k", b"v:w", ())


def test_headers_come_before_the_key():
    row = parser(parse_headers="true", parse_key="true").row(b"h:1,g:2\tk\tv", 1)
    assert row == Row(b"k", b"v", (("h", b"1"), ("g", b"2")))


def test_the_null_marker_means_null_everywhere():
    row = parser(parse_headers="true", parse_key="true", null_marker="NULL").row(b"h:NULL\tNULL\tNULL", 1)
    assert row == Row(None, None, (("h", None),))


def test_without_a_null_marker_an_empty_value_is_empty():
    assert parser().row(b"", 1).value == b""


@pytest.mark.parametrize(("changes", "line"), [({"parse_key": "true"}, b"novalue"), ({"parse_headers": "true"}, b"h")])
def test_a_missing_separator_names_the_line(changes, line):
    with pytest.raises(InvalidRecordError, match=r"^line 7: no "):
        parser(**changes).row(line, 7)


def test_unknown_and_malformed_properties_are_refused():
    with pytest.raises(InvalidRequestError, match=r"did you mean 'print\.key'"):
        properties(["print.keys=true"], CONSUME_PROPERTIES)
    with pytest.raises(InvalidRequestError, match="name=value"):
        properties(["print.key"], CONSUME_PROPERTIES)
    with pytest.raises(InvalidRequestError, match="true or false"):
        parser(parse_key="yes")
    with pytest.raises(InvalidRequestError, match="at least one character"):
        parser(key_separator="")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], b"v\n"),
        (["print.key=true"], b"k\tv\n"),
        (["print.key=true", "key.separator=: "], b"k: v\n"),
        (["print.timestamp=true", "print.partition=true", "print.offset=true"],
         b"CreateTime:1700000000123\tPartition:3\tOffset:42\tv\n"),
        (["print.headers=true", "print.value=false"], b"h:1,g:null\n"),
        (["print.headers=true", "headers.separator=;", "null.literal=-"], b"h:1;g:-\tv\n"),
        (["line.separator=\\n\\n"], b"v\n\n"),
    ],
)  # fmt: skip
def test_the_text_format_is_that_of_the_console_consumer(given, line):
    assert text_formatter(properties(given, CONSUME_PROPERTIES))(record()) == line


def test_nulls_and_missing_headers_have_a_text():
    given = properties(["print.key=true", "print.headers=true"], CONSUME_PROPERTIES)
    assert text_formatter(given)(record(key=None, value=None, headers=())) == b"NO_HEADERS\tnull\tnull\n"


def test_log_append_time_is_named():
    given = properties(["print.timestamp=true"], CONSUME_PROPERTIES)
    assert text_formatter(given)(record(timestamp_type=1)).startswith(b"LogAppendTime:")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%t-%p@%o %T %k=%s\\n", b"t-3@42 1700000000123 k=v\n"),
        ("%K/%S 100%% [%h]\\t", b"1/1 100% [h=1,g=NULL]\t"),
        ("plain", b"plain"),
    ],
)
def test_templates_are_those_of_kcat(template, text):
    assert template_formatter(template)(record()) == text


def test_a_null_has_size_minus_one_in_a_template():
    assert template_formatter("%K %S|%k|%s")(record(key=None, value=None)) == b"-1 -1||"


@pytest.mark.parametrize("template", ["%x", "abc%"])
def test_an_unknown_token_is_refused(template):
    with pytest.raises(InvalidRequestError, match="unknown format"):
        template_formatter(template)


@given(
    st.none() | st.binary(),
    st.none() | st.binary(),
    st.lists(st.tuples(st.text(), st.none() | st.binary())).map(tuple),
)
def test_json_is_one_line_and_loses_nothing(key, value, headers):
    line = json_formatter(record(key=key, value=value, headers=headers))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert (back(found["key"]), back(found["value"])) == (key, value)
    assert tuple((name, back(text)) for name, text in found["headers"]) == headers


def back(value):
    import base64

    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


@pytest.mark.parametrize("partitions", [1, 2])
def test_lines_that_a_full_disk_cuts_short_are_told_as_they_are(partitions):
    disk, root = Disk(), Path("/store")
    disk.mkdir(root)
    line = b"x" * 500
    with logstore.open(root, env=Env(StillClock(), disk)) as store:
        store.create_topic("t", partitions=partitions)
        writer = LineWriter("t", parser())
        disk.free_bytes = 40_000
        with pytest.raises(DiskFullError) as full:
            writer.write(store, itertools.repeat((line + b"\n") * 20))
        there = [store.read("t", partition=p).read_all().num_rows for p in range(partitions)]
    assert [written.records for written in writer.written.values()] == there
    whole, partly = divmod(sum(there), 20)
    then = f", then {partly} of the next 20 (partition by partition)" if partly else ""
    assert str(full.value).endswith(f"; the first {whole * 20} lines were written{then}, no later one")
    assert bool(partly) == (partitions == 2)


def test_lines_that_are_there_and_perhaps_not_on_disk_are_not_called_unwritten():
    disk, root = Disk(), Path("/store")
    disk.mkdir(root)
    store = logstore.open(root, env=Env(StillClock(), disk))
    store.create_topic("t", config={"flush.messages": 1})
    writer = LineWriter("t", parser())
    writer.write(store, [b"a\n"])
    disk.fsync_fails = ".log"
    with pytest.raises(FailedStoreError, match=r"; the first 1 lines were written, of later ones it is not known$"):
        writer.write(store, [b"b\n"])
    assert store.read("t", partition=0).read_all().num_rows == 2
