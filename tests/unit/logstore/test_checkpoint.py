"""Small files: either the old content or the new."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from logstore.checkpoint import CHECKSUM, CheckpointError, read_checkpoint, write_atomic, write_checkpoint
from logstore.env import Env
from logstore.errors import FailedStoreError
from tests.support.disk import Crash, Disk, PowerCut, StillClock

words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(st.lists(words, min_size=1, max_size=4), max_size=5))
def test_a_checkpoint_reads_as_it_was_written(env, root, entries):
    write_checkpoint(env, root / "c", entries)
    assert read_checkpoint(env, root / "c") == entries


def test_a_checkpoint_is_kafkas_text(env, root, disk):
    write_checkpoint(env, root / "c", [("orders", 3, 42), ("orders", 4, 7)])
    assert disk.read_all(root / "c") == b"0\n2\norders 3 42\norders 4 7\n"


def test_a_checksum_tells_a_flipped_digit_and_is_no_entry(env, root, disk):
    write_checkpoint(env, root / "c", [("orders", 3, 42), ("orders", 4, 7)], checksum=(CHECKSUM, 0))
    stored = disk.read_all(root / "c")
    assert read_checkpoint(env, root / "c", needs_checksum=True) == [["orders", "3", "42"], ["orders", "4", "7"]]
    for data in (stored.replace(b"42", b"43"), stored.replace(b"\norders 4 7", b"").replace(b"\n3\n", b"\n2\n")):
        write_atomic(env, root / "c", data)
        with pytest.raises(CheckpointError, match="its checksum is another one"):
            read_checkpoint(env, root / "c")
    write_checkpoint(env, root / "c", [("orders", 3, 42)])
    with pytest.raises(CheckpointError, match="its checksum is another one"):
        read_checkpoint(env, root / "c", needs_checksum=True)


@pytest.mark.parametrize("kind", Crash)
def test_an_atomic_write_is_there_whole_or_not_at_all_and_stays(kind):
    for crash_at in range(1, 20):
        disk = Disk(seed=crash_at)
        disk.mkdir("/store")
        env = Env(StillClock(), disk)
        write_atomic(env, "/store/x", b"old" * 50)
        disk.crash_at = disk.calls + crash_at
        try:
            write_atomic(env, "/store/x", b"new" * 60)
        except PowerCut:
            assert disk.after_crash(kind).read_all("/store/x") in (b"old" * 50, b"new" * 60)
        else:
            assert disk.after_crash(kind).read_all("/store/x") == b"new" * 60
            return
    raise AssertionError("the write never finished")


def test_a_failed_fsync_leaves_the_old_file_and_no_temporary_one(env, root, disk):
    write_atomic(env, root / "x", b"old")
    disk.fsync_fails = ".tmp"
    with pytest.raises(FailedStoreError):
        write_atomic(env, root / "x", b"new")
    assert (disk.read_all(root / "x"), disk.list(root).names) == (b"old", ("x",))
