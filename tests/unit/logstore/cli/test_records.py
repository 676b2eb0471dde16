"""`pylog produce` and `pylog consume`, end to end on a directory."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from tests.support.poison import POISON, put
from tests.support.repeats import times
from tests.unit.logstore.store.test_full_disk import small_file_system


@pytest.fixture(autouse=True)
def orders(pylog):
    pylog("topics", "create", "orders", "--partitions", 3).ok()


def values(ran):
    return sorted(ran.ok().lines)


def test_lines_come_back(pylog):
    ran = pylog("produce", "orders", input="a\nb\nc\n").ok()
    assert ran.err == "3 records to orders\n"
    assert values(pylog("consume", "orders")) == ["a", "b", "c"]


def test_produce_tells_the_offsets(pylog):
    pylog("produce", "orders", "--partition", 2, input="a\nb\n").ok()
    (row,) = pylog("produce", "orders", "--partition", 2, "--output", "json", input="c\n").ok().json
    assert row == {"topic": "orders", "partition": 2, "start": 2, "end": 3, "records": 1}
    table = pylog("produce", "orders", "--partition", 2, input="d\ne\n").ok().lines
    assert [line.split() for line in table] == [
        ["PARTITION", "START", "END", "RECORDS"],
        ["2", "3", "5", "2"],
    ]


def test_produce_counts_its_own_records_when_another_writes_between_them(pylog, path):
    with process("produce", "orders", "--partition", "0", path=path, stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"mine\n")
        producer.stdin.flush()
        pylog("consume", "orders", "--from-beginning", "--max-messages", 1, "--timeout-ms", 20_000).ok()
        pylog("produce", "orders", "--partition", 0, input="another's\nand another's\n").ok()
        out, err = producer.communicate(b"mine, too\n")
    assert err == b"2 records to orders\n"
    assert [line.split() for line in out.splitlines()[1:]] == [[b"0", b"0", b"4", b"2"]]


def test_produce_on_a_full_disk_says_how_far_it_got(pylog, path):
    lines = [f"{i}:" + "x" * 2_000 for i in range(10_000)]
    with small_file_system(path, "9m"):
        pylog("topics", "create", "one").ok()
        ran = pylog("produce", "one", input="\n".join(lines))
        written = pylog("consume", "one").ok().lines
        assert written == lines[: len(written)]
        (row,) = ran.out.splitlines()[1:]
        assert row.split() == ["0", "0", str(len(written)), str(len(written))]
        assert f"No space left on device; free some space; the first {len(written)} lines were" in ran.err
        assert len(ran.err.splitlines()) == ran.code == 1
        again = pylog("produce", "one", input="\n".join(lines)).failed()
        assert again.endswith("; no line was written\n")


def test_a_file_system_that_can_only_be_read_is_named_as_the_cause(pylog, path):
    with small_file_system(path, "9m"):
        pylog("topics", "create", "one", "--value-schema", "n int").ok()
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        why = f"{path} can only be read: Read-only file system; make it writable, or work on a copy elsewhere"
        assert pylog("produce", "one", input="a\n").failed() == f"pylog: {why}; no line was written\n"
        for command in (("topics", "create", "two"), ("topics", "delete", "one")):
            assert pylog(*command).failed() == f"pylog: {why}\n"
        assert pylog("schemas", "register", "one-value", "n bigint").failed() == f"pylog: {why}\n"
        assert pylog("recover").failed() == f"pylog: {why}\n"
        assert pylog("consume", "one").ok().lines == []


def test_what_was_produced_is_durable(pylog, path):
    pylog("produce", "orders", "--partition", 1, input="a\nb\n").ok()
    assert "orders 1 2" in (path / "recovery-point-offset-checkpoint").read_text()


def test_keys_decide_the_partition(pylog):
    pylog("produce", "orders", "--key-separator", ":", input="".join(f"k{i % 5}:{i}\n" for i in range(50))).ok()
    records = pylog("consume", "orders", "--output", "json").ok().json_lines
    homes = {(record["key"], record["partition"]) for record in records}
    assert len(homes) == 5
    for key in ("k0", "k1"):
        assert [r["value"] for r in records if r["key"] == key] == [str(i) for i in range(int(key[1]), 50, 5)]


def test_what_consume_prints_produce_reads(pylog):
    pylog("produce", "orders", "--headers", "--key-separator", ":", input="h:1,g:2\tk:v\n").ok()
    printed = pylog(
        "consume", "orders", "--property", "print.headers=true", "--property", "print.key=true"
    ).ok()  # fmt: skip
    assert printed.out == "h:1,g:2\tk\tv\n"
    pylog("topics", "create", "copy").ok()
    pylog("produce", "copy", "--headers", "--property", "parse.key=true", input=printed.out).ok()
    (a,), (b,) = (pylog("consume", name, "--output", "json").ok().json_lines for name in ("orders", "copy"))
    assert (a["headers"], a["key"], a["value"]) == (b["headers"], b["key"], b["value"])


def test_the_codec_is_that_asked_for(pylog, path):
    pylog("produce", "orders", "--partition", 0, "--compression-codec", "zstd", input="a\n" * 100).ok()
    dumped = pylog("dump-log", path / "orders-0" / f"{0:020}.log", "--output", "json", store=False).ok().json_lines
    assert {batch["compresscodec"] for batch in dumped} == {"zstd"}
    assert values(pylog("consume", "orders")) == ["a"] * 100


WRITTEN = ["PARTITION", "START", "END", "RECORDS"]


def test_a_bad_line_stops_with_its_number_and_what_was_written_before_is_shown(pylog):
    keyed = ("--key-separator", ":", "--partition", 1)
    refused = pylog("produce", "orders", *keyed, input="a:1\nb\n").failed([WRITTEN, ["1", "0", "1", "1"]])
    assert "line 2: no key separator ':'" in refused
    assert "line 1: no key separator ':'" in pylog("produce", "orders", *keyed, input="a\n").failed()


def test_the_lines_before_a_bad_one_are_written(pylog):
    refused = pylog("produce", "orders", "--key-separator", ":", input="a:1\nb:2\nbad\nc:3\n")
    assert refused.code == 1
    assert "line 3" in refused.err
    assert sorted(values(pylog("consume", "orders"))) == ["1", "2"]


def test_a_line_that_is_too_long_has_its_number_and_those_before_it_are_written(pylog):
    pylog("topics", "alter", "orders", "--config", "max.message.bytes=1000").ok()
    before = [f"a{i}" for i in range(6)]
    refused = pylog("produce", "orders", input="\n".join([*before, "x" * 2000, "later"]))
    assert refused.code == 1
    assert refused.err.startswith("pylog: line 7: a record of ")
    assert refused.err.endswith("; the lines before it were written, no later one\n")
    assert values(pylog("consume", "orders")) == before


def test_a_line_without_the_key_that_a_topic_needs_has_its_number(pylog):
    pylog("topics", "create", "compact", "--config", "cleanup.policy=compact").ok()
    nulls = ("--key-separator", ":", "--property", "null.marker=NULL")
    refused = pylog("produce", "compact", *nulls, input="a:1\nb:2\nNULL:3\nd:4\n").failed(
        [WRITTEN, ["0", "0", "2", "2"]]
    )
    assert refused.startswith("pylog: line 3: no key, and the topic needs keys")
    assert values(pylog("consume", "compact")) == ["1", "2"]


@pytest.mark.parametrize(
    "wrong", ["nothing=1", "parse.key", "print.key", "key.separator=", "parse.key=maybe", "print.key=maybe"]
)
def test_a_wrong_property_is_wrong_usage(pylog, wrong):
    for command in ("produce", "consume"):
        if wrong.partition("=")[0] != "key.separator" or command == "produce":
            assert pylog(command, "orders", "--property", wrong, input="").code == 2


def test_a_wrong_format_letter_is_wrong_usage(pylog):
    ran = pylog("consume", "orders", "-f", "%x")
    assert ran.code == 2
    assert "unknown format '%x'" in ran.err


def test_an_unknown_topic_is_an_error_even_without_a_line(pylog):
    assert "no topic 'ordres'" in pylog("produce", "ordres", input="").failed()


def test_a_partition_that_is_not_there_is_refused(pylog):
    assert "partition 9" in pylog("produce", "orders", "--partition", 9, input="a\n").failed()
    assert "partition 9" in pylog("consume", "orders", "--partition", 9).failed()


def test_an_unknown_topic_names_the_near_ones(pylog):
    assert "did you mean 'orders'" in pylog("produce", "order", input="a\n").failed()
    assert "did you mean 'orders'" in pylog("consume", "order").failed()


def test_consume_starts_where_it_is_told(pylog):
    pylog("produce", "orders", "--partition", 1, input="a\nb\nc\n").ok()
    at = ("consume", "orders", "--partition", 1)
    assert pylog(*at, "--from-beginning").ok().lines == ["a", "b", "c"]
    assert pylog(*at, "--offset", "1").ok().lines == ["b", "c"]
    assert pylog(*at, "--offset", "earliest", "--max-messages", 2).ok().lines == ["a", "b"]
    assert pylog(*at, "--offset", "latest").ok().lines == []
    assert "outside" in pylog(*at, "--offset", "99").failed()


def test_an_offset_needs_its_partition_and_one_start_only(pylog):
    assert pylog("consume", "orders", "--offset", "1").code == 2
    assert pylog("consume", "orders", "--offset", "soon", "--partition", 0).code == 2
    assert pylog("consume", "orders", "--offset", "1", "--partition", 0, "--from-beginning").code == 2
    assert pylog("consume", "orders", "-f", "%s", "--output", "json").code == 2


def test_bytes_come_out_as_they_are(pylog, path):
    with logstore.open(path) as store:
        store.append("orders", pa.table({"value": pa.array([b"\xff\x00", None], pa.binary())}))
    records = pylog("consume", "orders", "--output", "json").ok().json_lines
    assert sorted((record["value"] for record in records), key=bool) == [None, {"base64": "/wA="}]


def test_a_template_prints_as_kcat(pylog):
    pylog("produce", "orders", "--key-separator", ":", "--partition", 1, input="k:v\n").ok()
    assert pylog("consume", "orders", "-f", r"%t/%p/%o %k=%s\n").ok().out == "orders/1/0 k=v\n"


def test_follow_sees_what_comes_and_ends_when_nothing_does(pylog, path):
    pylog("produce", "orders", input="old\n").ok()

    def write():
        with logstore.open(path) as store:
            store.append("orders", pa.table({"value": ["new"]}))

    writer = threading.Timer(0.3, write)
    writer.start()
    ran = pylog("consume", "orders", "--timeout-ms", 1500)
    writer.join()
    assert ran.ok().lines == ["new"]


def test_follow_from_the_beginning_ends_at_max_messages(pylog):
    pylog("produce", "orders", input="a\nb\n").ok()
    began = time.monotonic()
    ran = pylog("consume", "orders", "--follow", "--from-beginning", "--max-messages", 2)
    assert values(ran) == ["a", "b"]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("options", [(), ("--from-beginning", "--timeout-ms", 0), ("--output", "json")])
def test_a_batch_that_cannot_be_decoded_is_named_and_left_out_and_reading_goes_on(pylog, path, options):
    with logstore.open(path) as store:
        for value in (b"a", b"b"):
            store.append("orders", pa.table({"value": [value], "partition": pa.array([0], pa.int32())}))
            put(store.log("orders", 0), POISON["fewer records than it says"])
        store.append("orders", pa.table({"value": [b"c"], "partition": pa.array([1], pa.int32())}))
    ran = pylog("consume", "orders", *options)
    printed = [line["value"] for line in ran.json_lines] if "json" in options else ran.lines
    assert printed == ["a", "b", "c"]
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 4
    assert re.fullmatch(
        "skipped: .*: offsets 1 to 5, .*\nskipped: .*: offsets 7 to 11, .*\n3 records\n"
        "pylog: 10 offsets skipped, in batches that cannot be decoded\n",
        ran.err,
    )


def process(*arguments, path, **pipes):
    """`pylog` as a process of its own."""
    code = "from logstore.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--path", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes)


def test_a_reader_that_has_enough_ends_it_quietly(pylog, path):
    pylog("produce", "orders", input="".join(f"{i}\n" for i in range(50_000))).ok()
    with process("consume", "orders", path=path) as consumer:
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr.read() == b""
    assert consumer.returncode == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_a_signal_ends_a_follower_cleanly(pylog, path, end):
    pylog("produce", "orders", input="a\n").ok()
    with process("consume", "orders", "--follow", "--from-beginning", path=path) as consumer:
        assert consumer.stdout.readline() == b"a\n"
        consumer.send_signal(end)
        assert consumer.stderr.read() == b"1 record\n"
    assert consumer.returncode == 0


def test_a_line_is_there_as_soon_as_it_was_typed(pylog, path):
    with process("produce", "orders", path=path, stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        seen = pylog("consume", "orders", "--from-beginning", "--max-messages", 1, "--timeout-ms", 20_000)
        assert seen.ok().lines == ["first"]
        producer.communicate(b"second, without an end")
    assert producer.returncode == 0
    assert values(pylog("consume", "orders")) == ["first", "second, without an end"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_a_signal_ends_produce_and_what_was_read_is_written(pylog, path, end):
    with process("produce", "orders", path=path, stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"first\nbegun")
        producer.stdin.flush()
        pylog("consume", "orders", "--from-beginning", "--max-messages", 1, "--timeout-ms", 20_000).ok()
        producer.send_signal(end)
        assert producer.stderr.read() == b"2 records to orders\n"
    assert producer.returncode == 0
    assert values(pylog("consume", "orders")) == ["begun", "first"]


@pytest.mark.parametrize("arguments", [["consume", "orders"], ["topics", "list"], ["consume", "--help"], ["--help"]])
def test_an_output_that_cannot_be_written_is_one_line(pylog, path, arguments):
    pylog("produce", "orders", input="a\n").ok()
    code = "from logstore.cli import main; main()"
    store = [] if "--help" in arguments else ["--path", str(path)]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments, *store], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.stderr == b"pylog: cannot write to stdout: No space left on device\n"
    assert ran.returncode == 1
