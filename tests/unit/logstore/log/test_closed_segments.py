"""The known state of closed segments, and of a directory that its holder added to, is the state on disk."""

import os
import threading
from array import array

import pytest

from logstore.env import Env, OsFiles
from tests.support.disk import StillClock
from tests.support.partition import appended, batch, make, names, reopen

SETTINGS = {"segment_bytes": 200, "max_message_bytes": 200}


@pytest.fixture
def env():
    return Env(StillClock(), OsFiles())


@pytest.fixture
def log(tmp_path, env):
    """Eight records in segments of two."""
    log = make(tmp_path, env, **SETTINGS)
    for number in range(8):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number))
    assert [*log.files.view.bases] == [0, 2, 4, 6]
    return log


def test_segments_that_another_process_wrote_anew_are_looked_up_again(log, env):
    assert log.reader.offset_for_time(3000) == (3, 3000)
    other = reopen(log.directory, env, **SETTINGS)
    other.truncate_to(2)
    for number in range(2, 8):  # as many bytes, and the same names
        appended(other, batch(b"later %d" % number, timestamp=1_000_000 + number))
    assert [*log.files.refresh().bases] == [0, 2, 4, 6]
    assert log.reader.offset_for_time(3000) == (2, 1_000_002)
    assert log.segments() == other.segments()


def test_segments_that_this_log_wrote_anew_are_looked_up_again(log, env):
    assert log.reader.offset_for_time(3000) == (3, 3000)
    log.truncate_to(2)
    for number in range(2, 8):
        appended(log, batch(b"later %d" % number, timestamp=1_000_000 + number))
    assert log.reader.offset_for_time(3000) == (2, 1_000_002)
    assert log.segments() == reopen(log.directory, env, **SETTINGS).segments()


def test_a_damaged_segment_that_was_mended_in_place_is_looked_up_again(log, env):
    segment = log.files.segment(2)
    second = segment.batch_at(3)[0]
    magic = env.files.read(segment.path, second + 16, 1)
    env.files.write(segment.path, second + 16, b"\x63")
    assert [info.max_timestamp_ms for info in log.segments()] == [1000, 2000, 5000, 7000]
    env.files.write(segment.path, second + 16, magic)
    assert [info.max_timestamp_ms for info in log.segments()] == [1000, 3000, 5000, 7000]
    assert log.reader.offset_for_time(2500) == (3, 3000)


def test_who_has_not_looked_since_it_holds_the_lock_does_not_know_what_is_there(log, env):
    other = reopen(log.directory, env, **SETTINGS)
    for number in range(3):
        appended(other, batch(b"other %d" % number, timestamp=9000))
    with log.files.hold():  # without a look, as recovery does
        log.files.publish_names(snapshots=(), transactional=())
    assert log.log_end_offset == 11
    with log.files.hold():
        view = log.files.view
        log.files.segment(11).create()
        log.files.publish(view.bases + array("q", [11]), view.tail)
    assert log.files.view.directory is None


def test_what_another_thread_lists_while_segments_are_made_is_listed_again(log, env):
    with log.lock():
        env.files.create(log.directory / "00000000000000000000.index.1.deleted")  # half of a change
        reader = threading.Thread(target=log.files.refresh)
        reader.start()
        reader.join()
        assert log.files.view.aside
        appended(log, batch(b"value 8"))
        env.files.unlink(log.directory / "00000000000000000000.index.1.deleted")
        log.roll()
    assert log.files.refresh().aside == ()
    assert [*log.files.view.bases] == [0, 2, 4, 6, 8, 9]


def test_where_the_directory_belongs_to_another_user_it_is_listed_after_a_roll(log, monkeypatch):
    def refused(*_args, **_options):
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "utime", refused)
    log.roll()
    assert log.files.view.directory is None
    appended(log, batch(b"value", timestamp=9000))
    assert [*log.files.refresh().bases] == [0, 2, 4, 6, 8]


def test_a_new_segment_has_no_transaction_index_though_one_of_its_name_was_left(log, env):
    env.files.create(log.directory / f"{8:020d}.txnindex")
    assert log.files.refresh().transactional == (8,)
    log.roll()
    assert log.files.view.directory is not None
    assert names(log) == names(reopen(log.directory, env, **SETTINGS))
    assert log.files.view.transactional == ()
