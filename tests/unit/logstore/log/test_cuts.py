"""Logs that are cut: their epochs, indexes and marks, their readers, and flushes at the same time."""

import pytest

from logstore.env import Env
from logstore.log.tiering import advance_tiered_offset, tiered_offset
from tests.support.interrupted import Interrupted
from tests.support.partition import appended, batch, contents, make, reopen


def test_truncating_takes_epochs_and_index_entries_along(root, env):
    log = make(root, env, index_interval_bytes=0)
    for number in range(10):
        appended(log, batch(b"x", timestamp=100 * number), leader_epoch=number // 3)
    log.truncate_to(5)
    assert log.epochs.starts == ((0, 0), (1, 3))
    assert reopen(log.directory, env).epochs.starts == log.epochs.starts
    log.truncate_to(3)
    assert log.epochs.starts == ((0, 0),)
    assert list(log.verify()) == []
    appended(log, batch(b"y", timestamp=250), leader_epoch=1)
    assert log.reader.offset_for_time(240) == (3, 250)
    assert list(log.verify()) == []


@pytest.mark.parametrize("size", [1, 40, 90, 400])
def test_a_reader_finds_the_end_of_a_file_that_was_cut_and_has_grown_again(root, env, size):
    log = make(root, env)
    for _ in range(5):
        appended(log, batch(b"x" * 50))
    reader = reopen(log.directory, env)
    assert reader.log_end_offset == 5
    log.truncate_to(1)
    for _ in range(20):
        appended(log, batch(b"y" * size))
    assert reader.log_end_offset == 21
    assert contents(reader) == contents(log)


def test_truncating_below_the_start_begins_the_log_anew_there(root, env):
    log = make(root, env)
    log.append_as_follower(batch(b"a", first=10))
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (4, 4, [])
    assert appended(log, batch(b"b")).first_offset == 4


def test_a_cut_while_it_is_flushed_leaves_no_recovery_point_beyond_it(tmp_path):
    files = Interrupted(lambda kind, path: kind == "fsync" and path.endswith(".log"))
    log = make(tmp_path, Env(files=files))
    for value in (b"a", b"b", b"c", b"d"):
        appended(log, batch(value))
    files.act = lambda: log.truncate_to(2)
    assert log.flush() == log.point.offset == 0
    log.append_as_follower(batch(b"x", first=2))
    assert log.flush() == log.point.offset == 3
    assert contents(log) == [(0, b"a"), (1, b"b"), (2, b"x")]


def test_a_flush_that_ends_in_the_middle_of_a_cut_makes_no_damage_of_it(tmp_path):
    due = ["truncate", "fsync"]
    files = Interrupted(lambda kind, path: kind == due[0] and path.endswith(".log"))
    log = make(tmp_path, Env(files=files))
    for value in (b"a", b"b", b"c", b"d"):
        appended(log, batch(value))
    ends = []

    def flush():
        log.flush()
        del due[0]
        files.act = lambda: ends.append(log.log_end_offset)

    files.act = flush
    log.truncate_to(2)
    assert ends == [2]
    assert log.point.offset == log.flush() == 2


def test_a_cut_behind_a_gap_leaves_no_recovery_point_in_the_gap(root, env):
    log = make(root, env)
    log.append_as_follower(batch(b"a"))
    log.append_as_follower(batch(b"c", first=2))
    log.flush()
    log.truncate_to(2)
    assert log.point.offset == log.log_end_offset == 1


def test_a_cut_within_a_batch_takes_all_marks_to_where_that_began(root, env):
    log = make(root, env)
    appended(log, batch(b"a"))
    appended(log, batch(b"b", b"c", b"d"))
    log.flush()
    advance_tiered_offset(log, 4)
    log.truncate_to(3)
    assert (log.log_end_offset, tiered_offset(log), log.point.offset) == (1, 1, 1)
