"""docs/format.md: its hex dump is a batch, and its records are those that the page tells."""

import re
from pathlib import Path

from aiokafka.record.memory_records import MemoryRecords

from logstore.records.batch import Record, build, check, header_at, records

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def dumped() -> bytes:
    (dump,) = re.findall(r"^```hex\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    rows = [line.split() for line in dump.splitlines()]
    data = b""
    for address, *octets in rows:
        assert int(address, 16) == len(data)
        data += bytes.fromhex("".join(octets))
    return data


EXPECTED = [
    Record(7, 1357034400000, b"N14228", b'{"dest":"IAH"}', (("source", b"nyc"),)),
    Record(8, 1357035000000, None, b"", ()),
]


def test_the_dump_holds_the_records_that_the_page_tells():
    data = dumped()
    check(data, 0, header_at(data))
    assert list(records(data)) == EXPECTED


def test_the_dump_is_what_is_written():
    assert build(EXPECTED, leader_epoch=0) == dumped()


def test_others_read_the_dump_in_the_same_way():
    batch = MemoryRecords(dumped()).next_batch()
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == [tuple(r) for r in EXPECTED]


def test_the_field_table_has_the_header_layout():
    places = [int(at) for at in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert places == [0, 8, 12, 16, 17, 21, 23, 27, 35, 43, 51, 53, 57, 61]
