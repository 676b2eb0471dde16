"""Files of other programs are refused by name, never cut; gaps in a segment, as Kafka leaves them, are read over."""

import struct
import zlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

import logstore
from logstore.errors import CorruptLogError, UnsupportedFormatError
from logstore.log import soundness
from logstore.records.batch import seal
from logstore.tools.dump import dump
from tests.support.partition import appended, batch, contents, make, reopen

SEGMENT = "00000000000000000000.log"


def old(magic: int, codec: int = 0, *, first: int = 0, count: int = 5, value: bytes = b"old" * 20) -> bytes:
    made = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for number in range(count):
        made.append(first + number, timestamp=1000 + number, key=b"k", value=value, headers=[])
    return bytes(made.build())


def new(first: int, count: int = 5) -> bytes:
    made = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in range(count):
        made.append(number, timestamp=1000 + number, key=b"k", value=b"new" * 20, headers=[])
    raw = bytearray(made.build())
    struct.pack_into(">q", raw, 0, first)
    return bytes(raw)


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def left_by_a_crash(path, files: dict[str, bytes]):
    """A store with these segments of topic x, not closed cleanly; nothing of it was flushed."""
    with logstore.open(path) as store:
        store.create_topic("x")
    for file in (path / "x-0").glob("0*"):
        file.unlink()
    (path / ".kafka_cleanshutdown").unlink()
    for name, data in files.items():
        (path / "x-0" / name).write_bytes(data)


OLD = {
    "format 0": (old(0), 0),
    "format 1": (old(1), 0),
    "format 1, compressed": (old(1, 1), 0),
    "format 0, shorter than a batch's header": (old(0, count=1, value=b""), 0),
    "format 1, then 2": (old(1) + new(5), 0),
    "format 2, then 1": (new(0) + old(1, first=5), len(new(0))),
    "format 2, then a short one of 0": (new(0) + old(0, first=5, count=1, value=b""), len(new(0))),
    "format 1, the first one damaged": (damaged(old(1, count=1)) + old(1), len(old(1, count=1))),
}


@pytest.mark.parametrize("name", OLD)
def test_messages_of_old_formats_are_refused_by_name_and_stay_as_they_are(tmp_path, name):
    data, at = OLD[name]
    left_by_a_crash(tmp_path, {SEGMENT: data})
    file = tmp_path / "x-0" / SEGMENT
    magic = 0 if "0" in name else 1
    for _ in range(2):
        with logstore.open(tmp_path) as store:
            log = store.log("x", 0)
            for refused in (
                lambda: store.offsets("x"),
                lambda: store.read("x", partition=0),
                lambda: appended(log, batch(b"more")),  # noqa: B023
                log.recover,
                log.roll,
            ):
                with pytest.raises(UnsupportedFormatError, match=f"format {magic}.*`pylog mirror`") as error:
                    refused()
                assert (error.value.path, error.value.position) == (str(file), at)
            (place,) = log.verify()
            assert place.position in (0, at)
            assert "pylog mirror" in place.reason
            found = soundness.find(log)
            assert found is not None
            assert "pylog mirror" in found.reason
        assert file.read_bytes() == data


@pytest.mark.parametrize("closed", [old(1), old(0, count=1, value=b"")], ids=["long", "shorter than a header"])
def test_a_closed_segment_of_an_old_format_is_named_by_who_reads_it(tmp_path, closed):
    left_by_a_crash(tmp_path, {SEGMENT: new(0), f"{5:020}.log": closed, f"{10:020}.log": new(10)})
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    with logstore.open(tmp_path) as store:
        log = store.log("x", 0)
        assert log.reader.offset_for_time(1003) == (3, 1003)  # it is before that
        for refused in (
            lambda: log.read(5, max_bytes=1000),
            lambda: log.reader.offset_for_time(1005),
            log.reader.newest,
        ):
            with pytest.raises(UnsupportedFormatError, match=r"message format .*`pylog mirror`"):
                refused()
        assert len(log.segments()) == 3
        log.advance_start(10)
        assert log.reader.offset_for_time(1003) == (13, 1003)
        assert log.reader.newest() == (14, 1004)


def test_an_append_that_reads_a_closed_segment_of_an_old_format_names_it(tmp_path):
    left_by_a_crash(tmp_path, {SEGMENT: old(1), f"{5:020}.log": new(5)})
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    with logstore.open(tmp_path) as store, pytest.raises(UnsupportedFormatError, match="`pylog mirror`"):
        appended(store.log("x", 0), batch(b"more"))


def test_a_later_segment_of_an_old_format_does_not_go_with_a_torn_one(tmp_path):
    left_by_a_crash(tmp_path, {SEGMENT: new(0)[:-1], f"{5:020}.log": old(1, first=5)})
    with logstore.open(tmp_path) as store, pytest.raises(UnsupportedFormatError, match="format 1"):
        store.log("x", 0).recover()
    assert (tmp_path / "x-0" / SEGMENT).read_bytes() == new(0)[:-1]


def odd(at: int, value: int) -> bytes:
    """A batch of a right CRC at offset 5, with this byte in its header."""
    made = bytearray(new(5))
    made[at] = value
    seal(made, 0, len(made))
    return bytes(made)


ODD = {"more records than offsets": odd(60, 9), "format 3": odd(16, 3), "an unknown codec": odd(22, 7)}


@pytest.mark.parametrize("name", ODD)
def test_a_batch_with_a_right_crc_and_an_unknown_header_is_named_by_all_and_not_cut(tmp_path, name):
    left_by_a_crash(tmp_path, {SEGMENT: new(0) + ODD[name]})
    for _ in range(2):
        with logstore.open(tmp_path) as store:
            log = store.log("x", 0)
            for refused in (log.recover, lambda: store.offsets("x"), lambda: appended(log, batch(b"x"))):  # noqa: B023
                with pytest.raises(CorruptLogError, match="the CRC is right") as error:
                    refused()
                assert ("a newer pylog" in str(error.value)) == (name != "more records than offsets")
                assert error.value.position == len(new(0))
            assert ["the CRC is right" in place.reason for place in log.verify()] == [True]
    assert (tmp_path / "x-0" / SEGMENT).read_bytes() == new(0) + ODD[name]


def test_dump_log_shows_batches_of_later_formats_and_codecs_and_goes_on_behind_them(tmp_path):
    file = tmp_path / SEGMENT
    old_codec = bytearray(old(1, count=1))
    old_codec[17] = 6
    struct.pack_into(">I", old_codec, 12, zlib.crc32(old_codec[16:]))
    file.write_bytes(bytes(old_codec) + ODD["format 3"] + ODD["an unknown codec"] + new(10))
    lines = list(dump(file, verify=True))
    assert [(line.kind, line.facts["magic"]) for line in lines] == [("batch", magic) for magic in (1, 3, 2, 2)]
    assert [line.facts["compresscodec"] for line in lines] == ["unknown 6", "none", "unknown 7", "none"]
    assert ["a newer pylog" in str(line.facts.get("format")) for line in lines] == [False, True, True, False]
    file.write_bytes(ODD["more records than offsets"])
    assert [line.kind for line in dump(file)] == ["damage"]


@pytest.mark.parametrize("torn", [old(1, count=1)[:-1], damaged(old(0, count=1)), bytes(300), damaged(new(5)), b"\1"])
def test_what_is_short_or_fails_its_crc_is_cut(tmp_path, torn):
    left_by_a_crash(tmp_path, {SEGMENT: new(0) + torn})
    with logstore.open(tmp_path) as store:
        assert store.offsets("x")[0].end == 5
        assert store.log("x", 0).recover().cut_bytes == 0
    assert (tmp_path / "x-0" / SEGMENT).read_bytes() == new(0)


def test_dump_log_shows_messages_of_old_formats_and_goes_on_behind_them(tmp_path):
    file = tmp_path / SEGMENT
    file.write_bytes(old(0, count=2, value=b"") + old(1, 1, first=2) + new(7))
    for options in ({}, {"with_records": True}, {"verify": True}):
        lines = [line for line in dump(file, **options) if line.kind != "record"]
        assert [line.kind for line in lines] == ["batch"] * 4
        assert [line.facts["magic"] for line in lines] == [0, 0, 1, 2]
        assert [line.facts["compresscodec"] for line in lines] == ["none", "none", "gzip", "none"]
        assert all("pylog mirror" in str(line.facts["format"]) for line in lines[:3])


# ------------------------------------------------------------------ gaps


def test_gaps_in_a_segment_are_read_over_whatever_the_policy_of_the_topic(root, env):
    log = make(root, env)
    path = f"{log.directory}/{SEGMENT}"
    parts = [batch(b"a", b"b", first=3), batch(b"c", first=10), batch(b"d", first=100)]
    env.files.create(path)
    env.files.write(path, 0, b"".join(parts))
    for recovery_point in (0, 101):
        log = reopen(log.directory, env, recovery_point=recovery_point)
        report = log.recover()
        assert (report.cut_bytes, report.log_end_offset) == (0, 101)
        assert (list(log.verify()), soundness.find(log)) == ([], None)
        assert contents(log) == [(3, b"a"), (4, b"b"), (10, b"c"), (100, b"d")]
        assert contents(log, 5) == [(10, b"c"), (100, b"d")]
        assert log.read(50, max_bytes=1).next_offset == 101
        assert log.read(5, max_bytes=100, upper=8).next_offset == 8
        assert (log.reader.floor_batch(7), log.reader.floor_batch(50)) == (10, 100)
        assert log.reader.bytes_between(5, 50) == len(parts[1])
    assert appended(log, batch(b"e")).first_offset == 101
    copy = make(root, env, name="copy-0")
    copy.append_as_follower(log.read(0, max_bytes=1 << 20).data)
    assert contents(copy) == contents(log)
    log.truncate_to(50)
    assert contents(log) == [(3, b"a"), (4, b"b"), (10, b"c")]


def test_a_gap_between_segments_is_named_and_what_is_behind_it_is_kept(tmp_path):
    left_by_a_crash(tmp_path, {SEGMENT: new(0), f"{9:020}.log": new(9)})
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    with logstore.open(tmp_path) as store:
        log = store.log("x", 0)
        assert [place.reason for place in log.verify() if place.path.endswith(".log")] == [
            "offsets 5 to 9 are missing behind this segment"
        ]
        with pytest.raises(CorruptLogError, match="offsets 5 to 9 are missing"):
            log.read(5, max_bytes=1000)
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    with logstore.open(tmp_path):
        pass
    assert b"".join(path.read_bytes() for path in sorted((tmp_path / "x-0").glob("0*.log*"))) == new(0) + new(9)
