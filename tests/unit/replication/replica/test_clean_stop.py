"""The state that a clean stop stores saves the next start its checks, and counts only while the files are unchanged."""

import os
from collections import Counter
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.env import SETTLED_NS, Env, OsFiles
from logstore.store.description import new_topic_id
from logstore.store.log_dir import CLEAN_MARKER
from replication.model.cluster import TopicPartition
from replication.replica.storage import clean_stop
from replication.replica.storage.log_dir import ReplicaLogDir
from tests.support.partition import appended, batch

NAMES = "orders-0", "orders-1", "orders-2"
TPS = [TopicPartition("orders", number) for number in range(3)]
CONFIG = LogConfig(segment_bytes=200)  # two batches a segment


class Counted(OsFiles):
    """Counts what is asked of the directories of logs, and of the files there."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    def list(self, path):
        self.asked["list"] += Path(path).name in NAMES
        return super().list(path)

    def read(self, path, position, size):
        self.asked["read"] += 1
        return super().read(path, position, size)

    def read_all(self, path):
        self.asked["read"] += Path(path).parent.name in NAMES
        return super().read_all(path)


def age(path):
    """Give everything there a time of long ago."""
    for found in path.rglob("*"):
        os.utime(found, ns=(10**18, 10**18))


def opened(path):
    directory = ReplicaLogDir.open(path, Env(files=Counted()))
    directory.look()
    return directory, directory.recover(lambda topic: CONFIG)


@pytest.fixture
def closed(tmp_path):
    """Three logs, the second one of four segments, the third one empty; stopped a while after the last write."""
    directory, _ = opened(tmp_path)
    directory.create_logs({tp: new_topic_id() for tp in TPS})
    logs = {tp: directory.open_log(tp, directory.topic_ids[tp], CONFIG) for tp in TPS}
    for _ in range(2):
        appended(logs[TPS[0]], batch(b"a"), leader_epoch=3)
    for number in range(8):
        appended(logs[TPS[1]], batch(b"b", b"c"), leader_epoch=number // 4)
    age(tmp_path)
    directory.close(logs)
    return tmp_path


def env_of(directory):
    return directory._env


def described(logs):
    return {
        tp: (log.log_start_offset, log.log_end_offset, log.epochs.starts, [*log.files.view.bases])
        for tp, log in logs.items()
    }


def test_a_start_after_a_clean_stop_reads_and_lists_no_log(closed):
    directory, logs = opened(closed)
    assert not directory.log_dir.is_clean, "the note is of one start only"
    asked = env_of(directory).files.asked
    assert asked == Counter(list=0, read=0), asked
    assert described(logs)[TPS[0]] == (0, 2, ((3, 0),), [0])
    assert described(logs)[TPS[1]][1:3] == (16, ((0, 0), (1, 8)))
    assert len(described(logs)[TPS[1]][3]) == 4
    assert described(logs)[TPS[2]] == (0, 0, (), [])
    for log in logs.values():
        before = log.log_end_offset
        appended(log, batch(b"more"), leader_epoch=4)
        assert log.read(before, max_bytes=1000).next_offset == before + 1
    directory.close(logs)


def test_what_is_noted_is_what_a_look_finds(closed):
    marker = closed / CLEAN_MARKER
    noted = marker.read_bytes()
    assert set(clean_stop.decode(noted)) == set(TPS)
    directory, logs = opened(closed)
    by_note = described(logs)
    directory.close(logs)
    marker.write_bytes(b"")  # as of a version that notes nothing
    directory, logs = opened(closed)
    assert env_of(directory).files.asked["list"] == 3
    assert described(logs) == by_note
    directory.close(logs)


@pytest.mark.parametrize(
    "damage", [lambda note: note[:-20], lambda note: note.replace(b"false", b"0"), lambda note: b"7" + note]
)
def test_a_damaged_note_is_no_note(closed, damage):
    marker = closed / CLEAN_MARKER
    note = damage(marker.read_bytes())
    assert clean_stop.decode(note) == {}
    marker.write_bytes(note)
    directory, logs = opened(closed)
    assert [logs[tp].log_end_offset for tp in TPS] == [2, 16, 0]
    directory.close(logs)


def test_a_log_that_changed_since_is_looked_at(closed):
    """Its active file is shorter; it got another segment; it is of another topic."""
    segment = closed / NAMES[0] / f"{0:020d}.log"
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    (closed / NAMES[2] / f"{0:020d}.log").write_bytes(bytes(batch(b"x")))
    metadata = closed / NAMES[1] / "partition.metadata"
    replaced = metadata.with_name("new")
    replaced.write_text(f"version: 0\ntopic_id: {new_topic_id()}\n")
    former = clean_stop.decode((closed / CLEAN_MARKER).read_bytes())[TPS[1]].topic_id
    replaced.rename(metadata)

    (closed / "recovery-point-offset-checkpoint").unlink()  # it would tell of records that are gone
    directory, logs = opened(closed)
    assert [logs[tp].log_end_offset for tp in (TPS[0], TPS[2])] == [1, 1]
    assert directory.topic_ids[TPS[1]] != former
    directory.close(logs)


def test_an_epoch_file_that_was_replaced_is_read(closed):
    path = closed / NAMES[0] / "leader-epoch-checkpoint"
    replaced = path.with_name("new")
    replaced.write_text("0\n1\n5 0\n")
    replaced.rename(path)
    directory, logs = opened(closed)
    assert logs[TPS[0]].epochs.starts == ((5, 0),)
    directory.close(logs)


def test_what_was_written_just_before_the_stop_is_looked_at(tmp_path):
    """Its time may be that of a later change, too."""
    directory, _ = opened(tmp_path)
    directory.create_logs({T: new_topic_id() for T in TPS})
    logs = {tp: directory.open_log(tp, directory.topic_ids[tp], CONFIG) for tp in TPS}
    appended(logs[TPS[0]], batch(b"a"))
    age(tmp_path)
    segment, now_ns = tmp_path / NAMES[0] / f"{0:020d}.log", env_of(directory).clock.now_ms() * 1_000_000
    os.utime(segment, ns=(now_ns + 600 * SETTLED_NS,) * 2)  # still new, however slow this machine is
    directory.close(logs)
    assert set(clean_stop.decode((tmp_path / CLEAN_MARKER).read_bytes())) == set(TPS[1:])


def test_a_damaged_log_is_not_noted(closed):
    """Its end is not known, or it is to be looked through again."""
    directory, logs = opened(closed)
    directory._note_damage(TPS[1], 4, "a test says so")
    directory.close(logs)
    assert set(clean_stop.decode((closed / CLEAN_MARKER).read_bytes())) == {TPS[0], TPS[2]}
