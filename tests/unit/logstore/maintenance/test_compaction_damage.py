"""Damage of a compacted log that no CRC shows: it is named, and compaction neither goes by it nor hides it."""

import pytest

from logstore.errors import CorruptLogError
from logstore.log.segments import offset_checkpoints
from logstore.maintenance import compaction
from logstore.records.batch import Record, build
from tests.support.partition import appended, contents, make, reopen

SMALL = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 700,
    "max_message_bytes": 700,
    "index_interval_bytes": 150,
    "min_cleanable_dirty_ratio": 0.0,
}


def append(log, *keys):
    """A batch for each of these keys; its value is its offset."""
    for key in keys:
        row = Record(0, 1000, key.encode(), b"%04d" % log.log_end_offset)
        appended(log, build([row]))


def cleaned_offset(log):
    return offset_checkpoints.read(log.env, log.files.path, offset_checkpoints.CLEANED)


def files_of(log, env):
    return {name: env.files.read_all(log.directory / name) for name in env.files.list(log.directory).names}


def batches_of(log, number):
    """(segment, [(position, header)]) of a segment."""
    segment = log.files.segment(log.segments()[number].base_offset)
    return segment, list(segment.headers(0, segment.size_bytes()))


def flip(env, path, position, mask):
    (byte,) = env.files.read(path, position, 1)
    env.files.write(path, position, bytes([byte ^ mask]))


@pytest.fixture
def log(root, env):
    """Segments of eight batches; the last key of the first one is in no other batch before it."""
    log = make(root, env, **SMALL)
    append(log, *(f"u{number:02}" for number in range(40)), *["again"] * 3)
    return log


@pytest.mark.parametrize("mask", [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_base_offset_is_named_by_compaction_which_changes_nothing(log, env, number, mask):
    """Else the last record of a key would go: the damaged one claims a later place."""
    segment, found = batches_of(log, number)
    for position, _ in found:
        flip(env, segment.path, position + 7, mask)
        damaged = reopen(log.directory, env, **SMALL)
        before = {name: data for name, data in files_of(log, env).items() if name.endswith(".log")}
        with pytest.raises(CorruptLogError) as failure:
            compaction.compact(damaged)
        assert failure.value.path == segment.path
        assert failure.value.position in [position, *(at for at, _ in found if at > position)][:2]
        after = files_of(log, env)
        assert {name: data for name, data in after.items() if name.endswith(".log")} == before
        assert not [name for name in after if ".cleaned" in name or ".swap" in name]
        assert cleaned_offset(damaged) == 0
        flip(env, segment.path, position + 7, mask)
    assert compaction.compact(reopen(log.directory, env, **SMALL)).rounds == 1


def test_damage_of_what_is_clean_is_named_when_it_is_copied(log, env):
    compaction.compact(log)
    append(log, *(f"u{number:02}" for number in range(40)))
    segment, found = batches_of(log, 0)
    clean = cleaned_offset(log)
    flip(env, segment.path, found[-1][0] + 7, 0x40)
    with pytest.raises(CorruptLogError, match="the next segment begins at") as failure:
        compaction.compact(reopen(log.directory, env, **SMALL))
    assert (failure.value.path, failure.value.position) == (segment.path, found[-1][0])
    assert cleaned_offset(log) == clean


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_closed_segment_that_was_cut_between_two_batches_is_damage(log, env, kept, is_compacted):
    """A segment ends where the next one begins, after compaction, too: who reads on would miss records."""
    if is_compacted:
        append(log, *(f"u{number:02}" for number in range(4)))
        compaction.compact(log)
    segment, found = batches_of(log, 1)
    cut, _ = found[kept]
    whole = contents(log)
    env.files.truncate(segment.path, cut)
    end = found[kept - 1][1].next_offset if kept else segment.base_offset
    for again in (log, reopen(log.directory, env, **SMALL)):
        assert contents(again, upper=end) == [row for row in whole if row[0] < end]
        for start in range(end, log.segments()[2].base_offset):
            with pytest.raises(CorruptLogError, match=f"offsets {end} to .* are missing") as failure:
                again.read(start, max_bytes=1 << 20)
            assert (failure.value.path, failure.value.position) == (segment.path, cut)
    append(log, *(f"u{number:02}" for number in range(20)))
    with pytest.raises(CorruptLogError, match="are missing") as failure:
        compaction.compact(log)
    assert failure.value.path == segment.path
