"""`pylog produce` checks lines against columns, `pylog consume` prints columns."""

from __future__ import annotations

import json

import pytest

import logstore
from tests.support.commands import run_pylog

SCHEMA = "user string, amount decimal(10,2), at timestamp, tags array<string>"
ADA = '{"user": "Ada", "amount": 1.5, "tags": ["a\\tb", null]}'
BOB = '{"at": "2024-01-31T12:00:00Z", "user": "Bob"}'


@pytest.fixture
def place(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", partitions=1, schema=SCHEMA)
        store.create_topic("plain", partitions=1)
    return ["--path", str(tmp_path)]


def values(place, topic):
    with logstore.open(place[1], mode="r") as store:
        return store.read(topic, columns=["value"]).read_all().column("value").to_pylist()


def test_lines_are_checked_and_columns_are_printed(place):
    assert run_pylog("produce", "orders", "--typed", *place, input=f"{ADA}\n{BOB}\n").code == 0
    assert values(place, "orders") == [
        b'{"user":"Ada","amount":1.50,"tags":["a\\tb",null]}',
        b'{"user":"Bob","at":"2024-01-31T12:00:00.000000Z"}',
    ]
    assert run_pylog("consume", "orders", "--typed", *place).out == (
        'user\tamount\tat\ttags\nAda\t1.50\tnull\t["a\\tb",null]\nBob\tnull\t2024-01-31T12:00:00.000000Z\tnull\n'
    )
    shown = run_pylog("consume", "orders", "--typed", "--metadata", "--output", "json", *place).out.splitlines()
    first = json.loads(shown[0])
    assert (first["user"], first["_topic"], first["_partition"], first["_offset"]) == ("Ada", "orders", 0, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"user": 7}', "line 3: user: 7 is no string"),
        ('{"usr": "x"}', "line 3: the topic has no column 'usr'; did you mean 'user'?"),
        ("{", "line 3: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "line 3: not JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_those_before_it_are_written(place, line, reason):
    done = run_pylog("produce", "orders", "--typed", *place, input=f"{ADA}\n{ADA}\n{line}\n{BOB}\n")
    assert done.code == 1
    assert done.err.strip() == f"pylog: {reason}; the lines before it were written, no later one"
    assert len(values(place, "orders")) == 2


def test_columns_of_the_command_line_with_keys_headers_and_a_partition(place):
    typing = ["--schema", "user string, n int", "--key-fields", "user", *place]
    run_pylog("produce", "plain", "--headers", "--partition", "0", *typing, input='h:1\t{"user": "Ada", "n": 3}\n')
    with logstore.open(place[1], mode="r") as store:
        [row] = store.read("plain", partition=0, columns=["key", "value", "headers"]).read_all().to_pylist()
    assert row == {"key": b"Ada", "value": b'{"user":"Ada","n":3}', "headers": [{"key": "h", "value": b"1"}]}
    assert run_pylog("consume", "plain", *typing).out == "user\tn\nAda\t3\n"
    run_pylog("produce", "plain", "--key-separator", ":", "--schema", "n int", *place, input='k:{"n": 4}\n')
    with logstore.open(place[1], mode="r") as store:
        assert store.read("plain", partition=0, start=1).read_all().column("key").to_pylist() == [b"k"]


def test_misfits_end_the_command_or_are_passed_over_by_their_mode(place):
    run_pylog("produce", "plain", *place, input='{"n": 1}\nno JSON\n{"n": 3}\n')
    done = run_pylog("consume", "plain", "--schema", "n int", *place)
    assert (done.code, done.out) == (1, "n\n1\n")
    assert "plain-0 at offset 1: value: not JSON" in done.err
    shown = run_pylog("consume", "plain", "--schema", "n int", "--mode", "dropmalformed", *place)
    assert (shown.out, shown.err) == ("n\n1\n3\n", "2 records\n")
    few = run_pylog(
        "consume",
        "plain",
        "--schema",
        "n int",
        "--mode",
        "dropmalformed",
        "--max-messages",
        2,
        "--output",
        "json",
        *place,
    )
    assert (few.out, few.err) == ('{"n":1}\n{"n":3}\n', "2 records\n")
    shown = run_pylog("consume", "plain", "--schema", "n int, _corrupt_record string", "--mode", "permissive", *place)
    assert shown.out.splitlines() == ["n\t_corrupt_record", "1\tnull", "null\tno JSON", "3\tnull"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "plain", "--typed"], 1, "topic 'plain' has no columns of its own"),
        (["produce", "plain", "--typed"], 1, "topic 'plain' has no columns of its own"),
        (["produce", "plane", "--typed"], 1, "no topic 'plane' in"),
        (["consume", "plane", "--typed"], 1, "no topic 'plane' in"),
        (
            ["produce", "plain", "--typed", "--value-subject", "s"],
            1,
            "by --value-subject, or their columns by --schema",
        ),
        (["consume", "plain", "--value-subject", "s"], 1, "--value-subject='s': needs --typed"),
        (["consume", "plain", "--typed", "--schema", "n int"], 1, "--schema does not go with --typed"),
        (["consume", "plain", "--schema", "n int", "--key-fields", "m"], 1, "--key-fields: there is no column 'm'"),
        (["consume", "plain", "--schema", "n it"], 1, "'it' is no type of a column"),
        (["consume", "plain", "--value-format", "json"], 1, "which columns? Name them by --schema"),
        (["consume", "plain", "--schema", "n int", "-f", "%s"], 2, "columns have no --format and no --property"),
    ],
)
def test_options_that_do_not_go_together_are_refused(place, arguments, code, message):
    done = run_pylog(*arguments, *place, input="")
    assert (done.code, message in done.err) == (code, True), done.err
