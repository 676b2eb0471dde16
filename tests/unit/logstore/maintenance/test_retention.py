"""Retention decides by size and age; the age of records that are dated wrongly, and clocks that jump (S17)."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import CorruptLogError
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.lookup import SegmentInfo
from logstore.maintenance import retention_clock
from logstore.maintenance.retention import ages_ms, expired
from logstore.maintenance.retention_clock import ABSENCE_MS, DOUBT_MS, JUMP_MS, ClockReading, believe
from tests.support.disk import Disk, StillClock
from tests.support.partition import appended, batch, contents, make, reopen

NOW = 1_700_000_000_000
DAY = 24 * 3_600_000


def facts(*rows):
    """Segments of 10 offsets and 100 bytes: (newest record, last append), in days before now; None: no time."""
    return [
        SegmentInfo(
            base_offset=10 * number,
            next_offset=10 * number + 10,
            size_bytes=100,
            path="",
            first_timestamp_ms=-1,
            max_timestamp_ms=-1 if newest is None else NOW - int(newest * DAY),
            appended_ms=NOW - int(appended * DAY),
        )
        for number, (newest, appended) in enumerate(rows)
    ]


def gone(segments, *, start=0, tiered=0, **settings):
    size_bytes = sum(segment.size_bytes for segment in segments)
    found = expired(segments, LogConfig(**settings), size_bytes=size_bytes, start=start, tiered=tiered, now_ms=NOW)
    return [(segment.base_offset, segment.reason) for segment in found]


def test_segments_older_than_retention_go_and_the_first_that_is_not_ends_it():
    segments = facts((9, 9), (8, 8), (3, 3), (9, 2), (1, 1))
    assert gone(segments, retention_ms=7 * DAY) == [(0, "retention.ms"), (10, "retention.ms")]


def test_even_the_active_segment_goes_by_age_and_not_by_size():
    segments = facts((9, 9), (8, 8))
    assert len(gone(segments, retention_ms=7 * DAY)) == 2
    assert gone(segments, retention_bytes=0) == [(0, "retention.bytes")]


def test_by_size_a_segment_goes_if_the_others_still_have_so_many_bytes():
    segments = facts(*[(1, 1)] * 5)
    assert len(gone(segments, retention_bytes=300)) == 2
    assert len(gone(segments, retention_bytes=301)) == 1
    assert len(gone(segments, retention_bytes=500)) == 0


def test_what_lies_below_the_log_start_goes_whatever_the_policy():
    segments = facts((1, 1), (1, 1), (1, 1))
    assert gone(segments, start=25, cleanup_policy=frozenset({"compact"})) == [
        (0, "log start"),
        (10, "log start"),
    ]
    for policy in (frozenset({"compact"}), frozenset()):
        assert gone(segments, cleanup_policy=policy, retention_ms=0, retention_bytes=0) == []


def test_a_segment_that_ends_where_the_log_starts_goes():
    segments = facts((1, 1), (1, 1), (1, 1))
    compacted = {"cleanup_policy": frozenset({"compact"})}
    assert gone(segments, start=20, **compacted) == [(0, "log start"), (10, "log start")]
    assert gone(segments, start=19, **compacted) == [(0, "log start")]


def test_only_what_is_tiered_goes_with_remote_storage():
    segments = facts((9, 9), (9, 9), (9, 9))
    kept = {"retention_ms": DAY, "remote_storage_enable": True}
    assert gone(segments, tiered=0, **kept) == []
    assert gone(segments, tiered=19, **kept) == [(0, "retention.ms")]
    assert gone(segments, tiered=20, **kept) == [(0, "retention.ms"), (10, "retention.ms")]


def test_records_from_the_future_keep_a_segment_no_longer_than_their_append_s17():
    segments = facts((-3650, 9), (-3650, 3))
    assert gone(segments, retention_ms=7 * DAY) == [(0, "retention.ms")]


def test_old_records_count_as_old_though_they_were_appended_now():
    assert gone(facts((30, 0), (30, 0)), retention_ms=7 * DAY) == [(0, "retention.ms"), (10, "retention.ms")]


def test_records_without_a_time_count_from_their_append():
    assert gone(facts((None, 9), (None, 3)), retention_ms=7 * DAY) == [(0, "retention.ms")]


def test_files_dated_long_ago_by_a_clock_that_was_wrong_are_not_older_than_those_before_s17():
    # The clock stood in 1990 while the second segment was written; its records are dated rightly.
    assert gone(facts((3, 3), (2, 12_000), (1, 1)), retention_ms=7 * DAY) == []


def test_what_is_appended_at_this_moment_has_no_age():
    assert gone(facts((9, 9), (None, 0)), retention_ms=7 * DAY) == [(0, "retention.ms")]


def test_files_dated_into_the_future_say_nothing_s17():
    assert gone(facts((9, -500), (3, -500), (-500, -500)), retention_ms=7 * DAY) == [(0, "retention.ms")]


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=1, max_size=8))
def test_a_segment_is_never_older_than_its_newest_record_and_its_latest_neighbour_allow(rows):
    segments = facts(*rows)
    for number, age_ms in enumerate(ages_ms(segments, NOW)):
        newest, _ = rows[number]
        appended = [days for _, days in rows[: number + 1] if days >= 0]
        expected = max([newest, min(appended)] if appended else [newest, 0])
        assert age_ms == expected * DAY


# ------------------------------------------------------------------ the clock


def look(wall_ms, monotonic_ms, boot="b", doubted_ms=-1):
    return ClockReading(NOW + wall_ms, monotonic_ms, boot, doubted_ms)


def test_while_both_clocks_go_alike_wall_time_is_right():
    known = look(0, 0)
    now_ms, noted = believe(known, look(5 * DAY + JUMP_MS, 5 * DAY))
    assert now_ms == NOW + 5 * DAY + JUMP_MS
    assert noted.doubted_ms == -1


@pytest.mark.parametrize("jump_ms", [JUMP_MS + 1, 3650 * DAY, -JUMP_MS - 1, -3650 * DAY])
def test_after_a_jump_deletions_go_by_the_time_that_it_would_be_for_a_day_s17(jump_ms):
    known = look(0, 0)
    for passed_ms in (1000, 2000, DOUBT_MS + 999):
        now_ms, known = believe(known, look(passed_ms + jump_ms, passed_ms))
        assert now_ms == NOW + passed_ms
        assert known.doubted_ms == 1000
    now_ms, known = believe(known, look(DOUBT_MS + 1000 + jump_ms, DOUBT_MS + 1000))
    assert now_ms == NOW + DOUBT_MS + 1000 + jump_ms
    assert known.doubted_ms == -1


def test_a_clock_that_comes_back_is_believed_at_once():
    _, known = believe(look(0, 0), look(1000 + 3650 * DAY, 1000))
    now_ms, known = believe(known, look(2000, 2000))
    assert (now_ms, known.doubted_ms) == (NOW + 2000, -1)


def test_after_a_reboot_only_time_that_went_back_or_far_is_doubted():
    known = look(0, 10**9)
    assert believe(known, look(ABSENCE_MS, 5, "other"))[0] == NOW + ABSENCE_MS
    for wall_ms in (ABSENCE_MS + 1, -JUMP_MS - 1):
        now_ms, noted = believe(known, look(wall_ms, 5, "other"))
        assert (now_ms, noted.doubted_ms) == (NOW, 5)
        assert believe(noted, look(wall_ms + DOUBT_MS, 5 + DOUBT_MS, "other"))[0] == NOW + wall_ms + DOUBT_MS


class TwoClocks(StillClock):
    uptime_ms = 0

    def monotonic_ms(self):
        return self.uptime_ms


def test_what_was_seen_of_the_time_is_remembered_beside_the_topics(root):
    disk, clock = Disk(), TwoClocks(NOW)
    disk.mkdir(root)
    env = Env(clock, disk)
    assert retention_clock.now_ms(env, root) == NOW
    clock.time_ms += 3650 * DAY
    clock.uptime_ms += 1
    assert retention_clock.now_ms(env, root, read_only=True) == NOW + 1
    assert retention_clock.now_ms(env, root) == NOW + 1
    disk.names[f"{root}/house-clock"].data[:] = b"garbage"
    assert retention_clock.now_ms(env, root) == clock.time_ms


def test_a_damaged_log_start_is_reported_so_that_deleted_records_do_not_come_back(disk, env):
    log = make(Path("/store"), env, segment_bytes=300, max_message_bytes=300)
    for number in range(9):
        appended(log, batch(b"%d" % number))
    log.advance_start(4)
    path = f"{log.directory}/{offset_checkpoints.LOG_START}"
    whole = bytes(disk.names[path].data)
    for position in range(len(whole)):
        disk.names[path].data[position] ^= 1
        other = partial(reopen, log.directory, env)
        with suppress(CorruptLogError):
            assert contents(other())[0][0] == 4
        with (
            pytest.raises(CorruptLogError, match=offset_checkpoints.LOG_START)
            if position == 4
            else suppress(CorruptLogError)
        ):
            other().recover()
        disk.names[path].data[:] = whole


def test_a_damaged_mark_is_no_mark(disk, env, caplog):
    offset_checkpoints.write(env, "/store", offset_checkpoints.CLEANED, 1234)
    assert offset_checkpoints.read(env, "/store", offset_checkpoints.CLEANED) == 1234
    path = f"/store/{offset_checkpoints.CLEANED}"
    for position in range(len(disk.names[path].data)):
        damaged = bytearray(disk.names[path].data)
        damaged[position] ^= 1
        disk.names[path].data, kept = damaged, disk.names[path].data
        assert offset_checkpoints.read(env, "/store", offset_checkpoints.CLEANED) in (0, 1234)
        disk.names[path].data = kept
    assert "damaged" in caplog.text
