"""A broker's event loop reads itself the same as `read` returns, and only where it waits for no disk."""

from pathlib import Path

import pytest

from logstore.env import Env, OsFiles
from logstore.errors import CorruptLogError
from tests.support.partition import append, batch, make


class Cold(OsFiles):
    """A disk of which the system has nothing in memory."""

    def read_cached(self, path, position, size):
        return None


@pytest.fixture
def log(tmp_path):
    made = make(tmp_path, Env(), segment_bytes=4000)
    for number in range(60):
        append(made, batch(b"%d" % number, b"y" * 100))
    return made


@pytest.mark.parametrize("max_bytes", [1, 300, 1000, 1 << 20])
def test_a_scan_is_that_of_read(log, max_bytes):
    start, end = log.files.view.bases[-1], log.log_end_offset
    for upper in (end, end - 3):
        offset, hits = start, 0
        while offset < upper:
            found = log.reader.read_cached(offset, max_bytes=max_bytes, upper=upper)
            expected = log.read(offset, max_bytes=max_bytes, upper=upper)
            if found is not None:
                assert found == expected
                hits += 1
            offset = expected.next_offset
        assert hits or max_bytes == 1


def test_only_what_is_little_and_where_a_reader_is_known_to_go_on(log):
    start, end = log.files.view.bases[-1], log.log_end_offset
    assert log.reader.read_cached(start + 2, max_bytes=1000, upper=end) is None  # nobody has read up to there
    log.read(start, max_bytes=1, upper=end)
    assert log.reader.read_cached(start + 2, max_bytes=1000, upper=end) is not None
    assert log.reader.read_cached(0, max_bytes=1000, upper=end) is None  # an older segment
    assert log.reader.read_cached(start, max_bytes=1, upper=end) is None  # its first batch is larger
    assert log.reader.read_cached(end, max_bytes=1000, upper=end) is None
    assert log.reader.read_cached(start, max_bytes=1000, upper=end + 1) is None


def test_much_is_left_to_a_thread(tmp_path):
    log = make(tmp_path, Env())
    for _ in range(3):
        append(log, batch(b"x" * 100_000))
    assert log.reader.read_cached(0, max_bytes=1 << 20, upper=3) is None
    assert log.reader.read_cached(0, max_bytes=110_000, upper=3).next_offset == 1


def test_what_is_not_in_memory_is_left_to_a_thread(tmp_path):
    log = make(tmp_path, Env(files=Cold()))
    append(log, batch(b"x"))
    assert log.reader.read_cached(0, max_bytes=1000, upper=1) is None
    assert log.read(0, max_bytes=1000, upper=1).next_offset == 1


@pytest.mark.parametrize("at", [0, 7, 8, 11, 16, 23, 26])
def test_nothing_is_returned_that_read_refuses(log, at):
    start, end = log.files.view.bases[-1], log.log_end_offset
    whole = log.read(start, max_bytes=1 << 20)
    with Path(whole.path).open("r+b") as file:
        file.seek(whole.position + at)
        byte = file.read(1)[0]
        file.seek(whole.position + at)
        file.write(bytes([byte ^ 0x40]))
    found = log.reader.read_cached(start, max_bytes=1 << 20, upper=end)
    try:
        expected = log.read(start, max_bytes=1 << 20, upper=end)
    except CorruptLogError:
        assert found is None
    else:
        assert found is None or found == expected
