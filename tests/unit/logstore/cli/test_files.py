"""`pylog dump-log`, `pylog verify`, `pylog recover`."""

import json
import os
import shutil

import pyarrow as pa
import pytest

import logstore

LOG, INDEX, TIME_INDEX = (f"{0:020}.{kind}" for kind in ("log", "index", "timeindex"))


@pytest.fixture
def partition(pylog, path):
    """Partition 0 of `orders`: five batches of one record, an index entry for nearly each."""
    pylog("topics", "create", "orders", "--config", "index.interval.bytes=0").ok()
    for value in "abcde":
        pylog("produce", "orders", "--key-separator", ":", input=f"k:{value}\n").ok()
    return path / "orders-0"


@pytest.fixture
def dump(pylog):
    return lambda *arguments: pylog("dump-log", *arguments, store=False)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_dump_shows_the_batches_under_kafkas_names(partition, dump):
    lines = dump(partition / LOG).ok().lines
    assert lines[0] == f"Dumping {partition / LOG}"
    assert len(lines) == 6
    assert lines[1].startswith("baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1")
    assert "position: 0 CreateTime: " in lines[1]
    assert "magic: 2 compresscodec: none crc: " in lines[1]
    assert "isvalid" not in lines[1]


def test_dump_shows_the_records_when_asked(partition, dump):
    lines = dump(partition / LOG, "--print-data-log").ok().lines
    assert lines[1].endswith("isvalid: true")
    assert lines[2].startswith("| offset: 0 timestamp: ")
    assert lines[2].endswith("keySize: 1 valueSize: 1 headerKeys: [] key: k payload: a")


def test_dump_as_json_is_one_object_a_line(partition, dump):
    batches = dump(partition / LOG, "--output", "json").ok().json_lines
    assert [batch["baseOffset"] for batch in batches] == [0, 1, 2, 3, 4]
    assert [b["position"] for b in batches] == [i * batches[0]["size"] for i in range(5)]


def test_index_entries_lead_to_their_batches(partition, dump):
    batches = {b["position"]: b["lastOffset"] for b in dump(partition / LOG, "--output", "json").ok().json_lines}
    entries = dump(partition / INDEX, "--verify", "--output", "json").ok().json_lines
    assert entries
    assert all(batches[entry["position"]] == entry["offset"] for entry in entries)


def test_time_index_entries_are_true(partition, dump):
    newest = {b["lastOffset"]: b["CreateTime"] for b in dump(partition / LOG, "--output", "json").ok().json_lines}
    entries = dump(partition / TIME_INDEX, "--verify", "--output", "json").ok().json_lines
    assert entries
    assert all(newest[entry["offset"]] == entry["timestamp"] for entry in entries)


def test_a_wrong_crc_is_found_when_asked_for_and_the_rest_is_shown(partition, dump):
    flip(partition / LOG, 65)
    assert dump(partition / LOG).ok()
    ran = dump(partition / LOG, "--verify")
    assert ran.code == 1
    assert "isvalid: false" in ran.lines[1]
    assert ran.lines[2].startswith("DAMAGED position: 0 damage: CRC-32C")
    assert len(ran.lines) == 7
    assert "in 1 place" in ran.err


def test_a_broken_header_ends_the_dump_with_its_place(partition, dump):
    size = (partition / LOG).stat().st_size // 5
    flip(partition / LOG, 2 * size + 16)
    ran = dump(partition / LOG)
    assert ran.code == 1
    assert ran.lines[-1].startswith(f"DAMAGED position: {2 * size} damage: magic")
    assert len(ran.lines) == 4


def test_a_cut_file_is_damage(partition, dump):
    data = (partition / LOG).read_bytes()
    (partition / LOG).write_bytes(data[:-3])
    assert "bytes of a batch of" in dump(partition / LOG).lines[-1]


@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_a_wrong_index_is_found_against_its_log(partition, dump, name):
    flip(partition / name, 3)
    ran = dump(partition / name, "--verify")
    assert ran.code == 1
    assert any(line.startswith("DAMAGED") for line in ran.lines)


def test_control_batches_show_their_marker(tmp_path, dump):
    from logstore.records.batch import CONTROL, TRANSACTIONAL, Record, build

    commit = Record(0, 1000, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x05")
    (tmp_path / LOG).write_bytes(build([commit], attributes=CONTROL | TRANSACTIONAL, producer=(7, 0, -1)))
    lines = dump(tmp_path / LOG, "--print-data-log").ok().lines
    assert "isTransactional: true isControl: true" in lines[1]
    assert lines[2].endswith("endTxnMarker: COMMIT coordinatorEpoch: 5")


def test_what_is_no_segment_file_is_refused(tmp_path, dump):
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a segment file" in dump(tmp_path / "notes.txt").err
    assert "no such file" in dump(tmp_path / LOG).err
    (tmp_path / LOG).write_text("hello, this is no log at all, not at all, not even a little bit of one")
    assert dump(tmp_path / LOG).code == 1
    assert dump().code == 2


def test_verify_of_a_sound_store_says_so(pylog, partition):
    ran = pylog("verify").ok()
    assert [line.split() for line in ran.lines] == [
        ["TOPIC", "PARTITION", "SEGMENTS", "BYTES", "DAMAGE"],
        ["orders", "0", "1", str((partition / LOG).stat().st_size), "-"],
    ]


def test_verify_finds_damage_names_it_and_changes_nothing(pylog, partition):
    flip(partition / LOG, 65)
    before = (partition / LOG).read_bytes()
    ran = pylog("verify", "--output", "json")
    assert ran.code == 1
    (place,) = ran.json[0]["damage"]
    assert place["file"] == str(partition / LOG)
    assert place["position"] == 0
    assert f"{partition / LOG}: damaged at byte 0" in ran.err
    assert (partition / LOG).read_bytes() == before


def test_verify_of_one_topic_leaves_out_the_others(pylog, partition):
    pylog("topics", "create", "other").ok()
    assert [row["topic"] for row in pylog("verify", "--topic", "other", "--output", "json").ok().json] == ["other"]
    assert "no topic" in pylog("verify", "--topic", "nothing").failed()


def test_verify_names_directories_that_belong_to_no_topic(pylog, partition, path):
    pylog("topics", "create", "gone").ok()
    pylog("topics", "delete", "gone").ok()  # its directory is hidden, and its deletion known
    hidden = path / f"other-3.{'A' * 22}.deleted"
    for left in (path / "old-0", path / "old-11", path / "old-2", hidden):
        left.mkdir()
        (left / "partition.metadata").write_text(f"version: 0\ntopic_id: {'A' * 22}\n")
    shutil.copy(partition / LOG, hidden)
    (path / "notes-1").write_text("a file")
    for left in ("old-0", "old-2", hidden.name):
        os.utime(path / left, (0, 0))

    def said(*more):
        return pylog("verify", *more).ok().err.splitlines()

    empty, other = said()  # old-11 was made just now: its topic may be on its way
    assert empty == (
        f"{path}: 2 directories, from old-0 to old-2, belong to no topic and hold no records; "
        "`pylog recover` removes them"
    )
    assert other.startswith(f"{hidden} belongs to no topic")
    assert said("--topic", "orders") == []
    (path / "old-0" / "partition.metadata").unlink()
    (path / "old-0").rmdir()
    assert said()[0] == f"{path / 'old-2'} belongs to no topic and holds no records; `pylog recover` removes it"
    assert said("--topic", "orders") == []
    pylog("recover").ok()
    assert sorted(each.name for each in path.glob("old*")) == []
    assert said() == [other]
    assert (hidden / LOG).exists()


def test_verify_fails_at_once_where_records_have_lost_their_topic(pylog, partition, path):
    pylog("topics", "create", "more", "--partitions", 12).ok()
    for number in (0, 2, 11):
        pylog("produce", "more", "--partition", number, input="a\n").ok()
    kept = {name: (path / "topics" / name).read_bytes() for name in ("orders.json", "more.json")}
    for name in kept:
        (path / "topics" / name).unlink()
    ran = pylog("verify", "--output", "json")
    assert ran.code == 1
    more, orders = ran.json
    assert [(row["topic"], row["partition"], len(row["damage"])) for row in (more, orders)] == [
        ("more", None, 1),
        ("orders", None, 1),
    ]
    file = path / "topics" / "orders.json"
    assert (orders["damage"][0]["file"], orders["damage"][0]["position"]) == (str(file), 0)
    assert orders["damage"][0]["reason"].startswith(f"{file} is missing, and orders-0 holds records; ")
    assert "more.json is missing, and 3 directories, from more-0 to more-11, hold records; " in ran.err
    assert "more.json is missing" in pylog("recover").failed()
    (path / "topics" / "more.json").write_bytes(kept["more.json"])
    written = {"version": 1, "name": "orders", "topic_id": json.loads(kept["orders.json"])["topic_id"]}
    (path / "topics" / "orders.json").write_text(json.dumps(written | {"partitions": 1, "config": {}}))
    assert pylog("verify").ok().err == ""
    assert pylog("recover").ok()
    assert len(pylog("consume", "more").ok().lines) == 3


def test_recover_cuts_a_torn_tail_and_says_so(pylog, partition, path):
    (path / ".kafka_cleanshutdown").unlink()
    with (partition / LOG).open("ab") as file:
        file.write(b"torn")
    (row,) = pylog("recover", "--output", "json").ok().json
    assert (row["partition"], row["end"], row["cut_bytes"]) == ("orders-0", 5, 4)
    assert pylog("consume", "orders").ok().lines == list("abcde")


def test_recover_says_of_damage_what_is_certain_and_how_to_read_on(pylog, path):
    pylog("topics", "create", "t").ok()
    for value in "abc":
        pylog("produce", "t", input=f"{value}\n").ok()
    flip(path / "t-0" / LOG, 65)  # in the first of three batches
    said = pylog("recover").failed()
    assert "damaged at byte 0" in said
    assert "records from 0 on were flushed, and what follows the damage was not checked" in said
    assert "restore the file from a copy, or read around the place" in said
    assert pylog("consume", "t", "--partition", 0, "--offset", 1).ok().lines == list("bc")


def test_recover_says_which_records_a_log_that_was_cut_has_lost(pylog, partition):
    data = (partition / LOG).read_bytes()
    (partition / LOG).write_bytes(data[: 3 * len(data) // 5])
    said = pylog("recover").failed()
    assert "the log ends there; records 3 to 5 were flushed and cannot be read" in said


def test_recover_needs_the_store_for_itself(pylog, partition, path):
    with logstore.open(path):
        assert str(path) in pylog("recover").failed()


def test_recover_takes_a_store_back_after_a_failed_fsync(pylog, partition, path):
    (path / ".fsync-failed").write_text("0 test\n")
    assert "pylog recover" in pylog("produce", "orders", input="x\n").failed()
    assert pylog("consume", "orders").ok().lines == list("abcde")
    pylog("recover").ok()
    assert pylog("produce", "orders", input="x\n").ok()


def test_verify_goes_on_behind_a_partition_that_cannot_even_be_opened(pylog, path):
    pylog("topics", "create", "t", "--partitions", 4).ok()
    for number in range(4):
        pylog("produce", "t", "--partition", number, input="a\n").ok()
    data = (path / "t-0" / LOG).read_bytes()
    (path / "t-0" / LOG).write_bytes(data[:-3])  # flushed, and gone
    for file in (path / "t-1").iterdir():
        file.unlink()
    (path / "t-1").rmdir()
    flip(path / "t-2" / LOG, 65)
    ran = pylog("verify", "--output", "json")
    assert ran.code == 1
    gone, missing, flipped, sound = ran.json
    assert [place["file"] for place in gone["damage"]] == [str(path / "t-0" / LOG)]
    assert "were flushed and cannot be read" in gone["damage"][0]["reason"]
    assert "is missing" in missing["damage"][0]["reason"]
    assert "CRC-32C" in flipped["damage"][0]["reason"]
    assert sound["damage"] == []
    assert len(ran.err.splitlines()) == 4


def test_produce_and_consume_of_a_damaged_partition_name_the_file(pylog, partition):
    flip(partition / LOG, 65)
    assert f"{partition / LOG}: damaged at byte 0" in pylog("consume", "orders").failed()


def test_dump_says_what_is_no_file_before_any_title(partition, dump, tmp_path):
    assert "no such file" in dump(tmp_path / LOG).failed()
    assert "no such file" in dump(tmp_path / "other.txt").failed()
    assert f"{partition} is a directory; give a file in it: {partition / LOG}" in dump(partition).failed()
    assert "is a directory; it holds no .log file" in dump(partition.parent).failed()


def test_verify_reports_a_place_once(pylog, partition):
    flip(partition / LOG, 16)  # the magic byte: seen by the check, and where the end of the log is sought
    ran = pylog("verify", "--output", "json")
    places = [(place["file"], place["position"]) for place in ran.json[0]["damage"]]
    assert places.count((str(partition / LOG), 0)) == 1


def test_verify_fails_on_a_damaged_journal_of_transactions(pylog, partition, path):
    with logstore.open(path) as store:
        for number in range(5):
            with store.transaction("n", batch_id=number) as transaction:
                store.append("orders", pa.table({"value": ["v"]}), transaction=transaction)
    assert pylog("verify").ok()
    flip(path / "transactions" / "journal", 40)
    ran = pylog("verify")
    assert ran.code == 1
    assert ran.lines[-1].split() == ["-", "-", "-", "-", "1"]
    assert f"{path / 'transactions' / 'journal'}: damaged at byte 0" in ran.err
