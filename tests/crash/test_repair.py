"""Every crash point while a damaged replica is set aside: the next life knows of the damage, or there is none (S3)."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.env import Env
from logstore.log import holes
from logstore.log.holes import SegmentCopy
from replication.model.cluster import TopicPartition
from replication.replica.storage.damage_notes import DamageNote
from replication.replica.storage.log_dir import ReplicaLogDir
from tests.support.disk import Crash, Disk, PowerCut, StillClock
from tests.support.partition import TOPIC_ID, appended, batch, contents
from tests.support.repeats import times

ROOT = Path("/broker")
T0 = TopicPartition("t", 0)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, max_message_bytes=400)
COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
DAMAGED = 4
SOUND = [(number, b"value %d" % number) for number in range(DAMAGED)]

pytestmark = pytest.mark.usefixtures("_small")


def opened(disk, config=CONFIG):
    directory = ReplicaLogDir.open(ROOT, Env(StillClock(), disk))
    directory.look()
    return directory, directory.recover(lambda topic: config, threads=1).get(T0)


def damaged_disk():
    """Twelve batches in several segments, all flushed, one of them with another bit, which is noted."""
    disk = Disk(seed=1)
    disk.mkdir(BOOT_ID.parent)
    disk.create(BOOT_ID)
    disk.write(BOOT_ID, 0, b"this-boot\n")
    for path in (BOOT_ID, *BOOT_ID.parents):
        disk.fsync(path)
    directory, _ = opened(disk)
    directory.create_logs({T0: TOPIC_ID})
    log = directory.open_log(T0, TOPIC_ID, CONFIG)
    for number in range(12):
        appended(log, batch(b"value %d" % number), leader_epoch=number // 3)
    directory.checkpoints.note({T0: 12}, directory.checkpoints.cuts())
    directory.flush([(T0, log)])
    inode = next(inode for path, inode in disk.names.items() if b"value %d" % DAMAGED in inode.data)
    inode.data[:] = inode.data.replace(b"value %d" % DAMAGED, b"Value %d" % DAMAGED)
    inode.synced = bytes(inode.data)
    directory.notes.put(T0, DamageNote(TOPIC_ID, DAMAGED, "a bit"))
    return disk.after_crash(Crash.LOST)


def mend(directory, log):
    directory.set_aside(T0, log, directory.damage[T0][0])
    directory.note_mended(T0)


def fill(directory, log):
    """Fill the holes with the batches that the others have."""
    for base in log.files.view.bases:
        copy = SegmentCopy(log, base)
        for hole in holes.find(log, base):
            copy.fill(hole, batch(b"value %d" % DAMAGED, first=DAMAGED, epoch=DAMAGED // 3))
        copy.put()
    directory.note_mended(T0)


@pytest.mark.parametrize("kind", Crash)
def test_every_crash_point_of_filling_leaves_the_damage_that_was_known_or_none(kind):
    """Nothing but the damaged batch is ever missing, and in the end that is there."""
    everything = [(number, b"value %d" % number) for number in range(12)]
    before = damaged_disk()
    for crash_at in itertools.count(1):
        disk = before.copy()
        directory, log = opened(disk)
        disk.crash_at = disk.calls + crash_at
        try:
            fill(directory, log)
        except PowerCut:
            disk = disk.after_crash(kind)
        else:
            break
        directory, log = opened(disk)
        assert contents(log, upper=DAMAGED) == SOUND
        assert contents(log, DAMAGED + 1) == everything[DAMAGED + 1 :]
        if T0 in directory.damage:
            fill(directory, log)
        assert contents(log) == everything
        assert is_kept(disk)
        assert not list(log.verify())
        assert (directory.notes.all(), directory.damage) == ({}, {})
        assert directory.checkpoints.high_watermarks[T0] == 12
        assert [path for path in disk.names if path.endswith(".log.tmp")] == []
        appended(log, batch(b"again"), leader_epoch=9)
    assert crash_at > 10


def is_kept(disk):
    return any(path.endswith(".damaged") and b"Value" in inode.data for path, inode in disk.names.items())


@pytest.mark.parametrize(
    "config", [CONFIG, COMPACTED][: times(1, 2)], ids=["from-the-damage-on", "whole"][: times(1, 2)]
)
@pytest.mark.parametrize("kind", Crash)
def test_every_crash_point_of_a_repair_is_mended_by_the_next_life(kind, config):
    wanted = SOUND if config is CONFIG else []
    before = damaged_disk()
    for crash_at in itertools.count(1):
        disk = before.copy()
        directory, log = opened(disk, config)
        assert T0 in directory.damage
        disk.crash_at = disk.calls + crash_at
        try:
            mend(directory, log)
        except PowerCut:
            disk = disk.after_crash(kind)
        else:
            break
        directory, log = opened(disk, config)
        if T0 in directory.damage:
            mend(directory, log)
        assert contents(log) == wanted
        assert is_kept(disk)
        assert not list(log.verify())
        assert directory.checkpoints.high_watermarks.get(T0, 0) <= len(wanted)
        assert directory.notes.all() == {}
        assert [start.epoch for start in log.epochs.starts] == sorted({number // 3 for number, _ in wanted})
        log.append_as_follower(batch(b"again", first=len(wanted), epoch=9))
    assert crash_at > 20
