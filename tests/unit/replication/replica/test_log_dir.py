"""The checkpoints of a broker's replicas are never beyond their logs."""

import threading

import pytest

from logstore.config import LogConfig
from logstore.env import Env, OsFiles
from logstore.errors import CorruptLogError
from logstore.log import isolation
from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.store.description import new_topic_id
from logstore.store.log_dir import CLEAN_MARKER
from replication.model.cluster import TopicPartition
from replication.replica.storage.log_dir import BOOT, ReplicaLogDir
from replication.replica.storage.offset_checkpoints import HIGH_WATERMARKS
from tests.support.partition import appended, batch, ended

T0 = TopicPartition("orders", 0)


def opened(path):
    found = ReplicaLogDir.open(path, Env())
    found.look()
    return found, found.recover(lambda topic: LogConfig()).get(T0)


def killed(directory, log):
    log.close()
    directory.log_dir.close()


def flushed(path):
    """A log of two batches that are on disk, its file, and where the first one ends in that."""
    directory, _ = opened(path)
    topic_id = new_topic_id()
    directory.create_logs({T0: topic_id})
    log = directory.open_log(T0, topic_id, LogConfig())
    appended(log, batch(b"a"))
    segment = path / "orders-0" / "00000000000000000000.log"
    end_of_a = segment.stat().st_size
    appended(log, batch(b"b"))
    directory.flush([(T0, log)])
    return directory, log, segment, end_of_a


def noted(path):
    return (path / HIGH_WATERMARKS).read_text().split("\n")[2:-1]


def test_a_high_watermark_beyond_the_log_is_lowered_before_the_log_grows(tmp_path):
    """(R30) Or else, after the next crash, what was appended since would count as committed."""
    directory, _ = opened(tmp_path)
    topic_id = new_topic_id()
    directory.create_logs({T0: topic_id})
    log = directory.open_log(T0, topic_id, LogConfig())
    appended(log, batch(b"a"))
    end_of_a = (tmp_path / "orders-0" / "00000000000000000000.log").stat().st_size
    appended(log, batch(b"b", b"c"))
    directory.checkpoints.note({T0: 3}, directory.checkpoints.cuts())
    killed(directory, log)
    with (tmp_path / "orders-0" / "00000000000000000000.log").open("r+b") as file:
        file.truncate(end_of_a)  # the power went, too

    directory, log = opened(tmp_path)
    assert directory.checkpoints.high_watermarks == {T0: 1}
    appended(log, batch(b"not", b"committed"))
    killed(directory, log)
    directory, log = opened(tmp_path)
    assert (directory.checkpoints.high_watermarks, log.log_end_offset) == ({T0: 1}, 3)
    killed(directory, log)


def test_a_high_watermark_goes_with_its_replica(tmp_path):
    """(R29) A topic that is made again under the same name does not begin with that of the former one."""
    directory, _ = opened(tmp_path)
    former, later = new_topic_id(), new_topic_id()
    directory.create_logs({T0: former})
    directory.checkpoints.note({T0: 7}, directory.checkpoints.cuts())
    directory.create_logs({T0: later})
    assert noted(tmp_path) == []
    directory.checkpoints.note({T0: 7}, directory.checkpoints.cuts())
    directory.delete(T0, 0)
    assert noted(tmp_path) == []
    directory.log_dir.close()


def test_a_high_watermark_that_was_looked_at_before_a_cut_or_another_replica_is_not_noted(tmp_path):
    """(R30) Or else, after a crash, what comes in the place of what went would count as committed."""
    directory, _ = opened(tmp_path)
    directory.create_logs({T0: new_topic_id()})
    looked = directory.checkpoints.cuts()
    with directory.checkpoints.cutting(T0, 3):
        directory.checkpoints.note({T0: 7}, looked)
    directory.checkpoints.note({T0: 7}, looked)
    assert noted(tmp_path) == []
    looked = directory.checkpoints.cuts()
    directory.create_logs({T0: new_topic_id()})
    directory.checkpoints.note({T0: 7}, looked)
    assert noted(tmp_path) == []
    directory.checkpoints.note({T0: 7}, directory.checkpoints.cuts())
    assert noted(tmp_path) == ["orders 0 7"]
    directory.log_dir.close()


class CutMeanwhile(OsFiles):
    """A follower cuts its log while another thread waits for the disk."""

    cut, where = None, ""

    def fsync(self, path):
        super().fsync(path)
        if self.cut is not None and self.where in str(path) and str(path).endswith(".log"):
            cut, self.cut = self.cut, None
            other = threading.Thread(target=cut)
            other.start()
            other.join()


@pytest.mark.parametrize("where", ["orders-0", "orders-1"])
def test_a_log_that_is_cut_while_logs_are_flushed_is_noted_no_further_than_the_cut(tmp_path, where):
    """In its own fsync, and in that of the next one."""
    files = CutMeanwhile()
    directory = ReplicaLogDir.open(tmp_path, Env(files=files))
    directory.look()
    ids = {T0: new_topic_id(), TopicPartition("orders", 1): new_topic_id()}
    directory.create_logs(ids)
    logs = {tp: directory.open_log(tp, topic_id, LogConfig()) for tp, topic_id in ids.items()}
    for log in logs.values():
        for _ in range(5):
            appended(log, batch(b"a"))

    def cut():
        with directory.checkpoints.cutting(T0, 2):
            logs[T0].truncate_to(2)

    files.cut, files.where = cut, where
    assert directory.flush(logs.items())
    assert directory.log_dir.recovery_points.read() == {("orders", 1): 5}
    for log in logs.values():
        log.close()
    directory.log_dir.close()
    _, log = opened(tmp_path)
    assert log.log_end_offset == 2


def test_a_log_that_is_flushed_in_the_moment_before_it_is_cut_is_noted_no_further_than_the_cut(tmp_path):
    directory, _ = opened(tmp_path)
    topic_id = new_topic_id()
    directory.create_logs({T0: topic_id})
    log = directory.open_log(T0, topic_id, LogConfig())
    for _ in range(5):
        appended(log, batch(b"a"))
    with directory.checkpoints.cutting(T0, 2):
        directory.flush([(T0, log)])
        log.truncate_to(2)
    killed(directory, log)
    directory, log = opened(tmp_path)
    assert log.log_end_offset == 2
    killed(directory, log)


class FlushMeanwhile(OsFiles):
    """Another thread makes a replica durable just before it is hidden."""

    flush = None

    def rename(self, source, target):
        if self.flush is not None and str(target).endswith(".deleted"):
            flush, self.flush = self.flush, None
            flush()
        super().rename(source, target)


def test_what_is_noted_of_a_replica_at_last_is_not_the_next_ones_of_its_name(tmp_path):
    """(R29)"""
    files = FlushMeanwhile()
    directory = ReplicaLogDir.open(tmp_path, Env(files=files))
    directory.look()
    former, later = new_topic_id(), new_topic_id()
    directory.create_logs({T0: former})
    log = directory.open_log(T0, former, LogConfig())
    appended(log, batch(b"a"))
    files.flush = lambda: directory.flush([(T0, log)])
    directory.create_logs({T0: later})
    assert directory.log_dir.recovery_points.read() == {}
    killed(directory, log)
    directory, log = opened(tmp_path)
    assert log.log_end_offset == 0
    killed(directory, log)


def test_one_log_that_cannot_be_flushed_keeps_the_others_from_nothing_but_a_clean_end(tmp_path, monkeypatch):
    directory, _ = opened(tmp_path)
    ids = {T0: new_topic_id(), TopicPartition("orders", 1): new_topic_id()}
    directory.create_logs(ids)
    logs = {tp: directory.open_log(tp, topic_id, LogConfig()) for tp, topic_id in ids.items()}
    for log in logs.values():
        appended(log, batch(b"a"))

    def unreadable():
        raise CorruptLogError("orders-0", 0, "out of order")

    monkeypatch.setattr(logs[T0], "flush", unreadable)
    directory.close(logs)
    assert not (tmp_path / CLEAN_MARKER).exists()
    assert ReplicaLogDir.open(tmp_path, Env()).log_dir.recovery_points.read() == {("orders", 1): 1}


def test_a_loss_of_power_that_nobody_decided_about_is_said_again_after_a_clean_stop(tmp_path):
    """Or else one that stops before a controller heard of it could be elected for what it does not have."""
    directory, _ = opened(tmp_path)
    killed(directory, directory.open_log(T0, *made(directory)))
    (tmp_path / BOOT).write_text("another one")
    for _ in range(2):
        directory, log = opened(tmp_path)
        assert directory.has_lost_writes
        directory.close({T0: log})
    directory, log = opened(tmp_path)
    directory.note_boot()
    directory.close({T0: log})
    assert not opened(tmp_path)[0].has_lost_writes


def made(directory):
    topic_id = new_topic_id()
    directory.create_logs({T0: topic_id})
    return topic_id, LogConfig()


def test_a_log_that_lost_its_flushed_end_is_known_up_to_there(tmp_path):
    """It cannot be recovered: records that were flushed are gone. The rest can be read, and be shown."""
    directory, log, segment, end_of_a = flushed(tmp_path)
    killed(directory, log)
    with segment.open("r+b") as file:
        file.truncate(end_of_a)

    directory, log = opened(tmp_path)
    assert T0 in directory.unrecovered
    assert "were flushed and cannot be read" in directory.damage[T0][1]
    assert log.files.view.end == 1
    killed(directory, log)


def test_a_damaged_marker_hides_no_end_and_is_recovered_when_it_is_sound_again(tmp_path):
    """It only hides what transactions did: a leader of such a log was never filled, and took no appends, for ever."""
    directory, log, segment, _ = flushed(tmp_path)
    appended(log, build([Record(0, 0, None, b"c")], attributes=TRANSACTIONAL, producer=(7, 0, 0)))
    assert ended(log, 7, 0, commit=False) == 3
    end_of_marker = segment.stat().st_size
    appended(log, batch(b"d"))
    directory.flush([(T0, log)])
    appended(log, batch(b"e"))
    killed(directory, log)
    sound = segment.read_bytes()
    segment.write_bytes(sound[: end_of_marker - 1] + bytes([sound[end_of_marker - 1] ^ 1]) + sound[end_of_marker:])
    for suffix in (".txnindex", ".txncheck"):
        segment.with_suffix(suffix).write_bytes(b"")

    directory, log = opened(tmp_path)
    assert (log.files.view.end, directory.unrecovered) == (6, set())
    assert "CRC-32C" in directory.damage[T0][1]
    assert T0 in directory.half_recovered
    segment.write_bytes(sound)
    log.recover()
    end, aborted = isolation.committed(log, 0, 6)
    assert (end, [each.producer_id for each in aborted]) == (6, [7])
    directory.note_mended(T0)
    assert T0 not in directory.half_recovered
    killed(directory, log)


@pytest.mark.parametrize("stop", [ReplicaLogDir.close, lambda directory, logs: killed(directory, logs[T0])])
@pytest.mark.parametrize("left_bytes", [None, 0, 30], ids=["no file", "a whole batch", "half a batch behind it"])
def test_a_log_that_lost_its_flushed_end_is_cut_there_and_goes_on(tmp_path, stop, left_bytes):
    """Then its leader can fill it up again. It was never cut, and its replica stayed offline."""
    directory, log, segment, end_of_a = flushed(tmp_path)
    stop(directory, {T0: log})
    if left_bytes is None:
        segment.unlink()
    else:
        with segment.open("r+b") as file:
            file.truncate(end_of_a + left_bytes)
    end = 0 if left_bytes is None else 1

    directory, log = opened(tmp_path)
    assert T0 in directory.unrecovered
    at = directory.would_cut_at(log, None)
    done = directory.set_aside(T0, log, at)
    assert (at, done.offset, log.log_end_offset) == (end, end, end)
    assert (done.path is not None) == (left_bytes == 30), "what is cut is kept"
    directory.note_mended(T0)
    appended(log, batch(b"c"))
    killed(directory, log)
    directory, log = opened(tmp_path)
    assert (log.log_end_offset, directory.damage) == (end + 1, {})
    killed(directory, log)
