"""Many processes on one partition: appends do not mix, readers see them in order, the dead do no harm."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from logstore.env import Env
from logstore.errors import FailedStoreError, StaleLogError
from logstore.log.segments.directory import create
from tests.support.partition import TOPIC_ID, appended, batch, contents, make, reopen
from tests.support.repeats import times

SETTINGS = {"segment_bytes": 20_000, "index_interval_bytes": 500}
APPENDS = 150


def append_many(directory: str, writer: int, appends: int = APPENDS) -> None:
    log = reopen(Path(directory), Env(), **SETTINGS)
    for number in range(appends):
        data = batch(b"%d %d a" % (writer, number)) + batch(b"%d %d b" % (writer, number))
        appended(log, data)
        if number % 50 == 0:
            log.flush()


def read_until(directory: str, total: int, result) -> None:
    log = reopen(Path(directory), Env(), read_only=True, **SETTINGS)
    offset, seen = 0, []
    while offset < total:
        rows = contents(log, offset, max_bytes=3_000)
        seen += rows
        offset = rows[-1][0] + 1 if rows else offset
    result.send(seen)


def append_for_ever(directory: str) -> None:
    log = reopen(Path(directory), Env(), **SETTINGS)
    while True:
        appended(log, bytearray().join(batch(b"x" * 3_000) for _ in range(40)))


@pytest.fixture
def log(tmp_path):
    return make(tmp_path, Env(), **SETTINGS)


def check_writers(rows: list[tuple[int, bytes]], writers: int, appends: int = APPENDS) -> None:
    assert [offset for offset, _ in rows] == list(range(writers * appends * 2))
    values = [value for _, value in rows]
    for pair in zip(values[::2], values[1::2], strict=True):  # an append is never torn apart by another
        assert pair[0][:-1] == pair[1][:-1]
    for writer in range(writers):
        numbers = [int(v.split()[1]) for v in values[::2] if int(v.split()[0]) == writer]
        assert numbers == list(range(appends))


@pytest.mark.parametrize("method", ["fork", "spawn"][: times(1, 2)])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_appends_of_processes_do_not_mix_and_readers_see_them_in_order(log, method):
    context = multiprocessing.get_context(method)
    appended(log, batch(b"warm"))  # a fork inherits a log in use: descriptors, locks, caches
    log.truncate_to(0)
    directory, (out, into) = str(log.directory), context.Pipe(duplex=False)
    writers = [context.Process(target=append_many, args=(directory, n)) for n in range(3)]
    reader = context.Process(target=read_until, args=(directory, 3 * APPENDS * 2, into))
    for process in [*writers, reader]:
        process.start()
    seen = out.recv()
    for process in [*writers, reader]:
        process.join(60)
        assert process.exitcode == 0
    check_writers(seen, 3)
    assert contents(log) == seen
    assert list(log.verify()) == []
    assert log.recover().cut_bytes == 0


def test_forked_children_use_the_very_log_of_their_parent(log):
    appended(log, batch(b"p"))
    children = []
    with log.lock():  # held at the fork: the children must not think that they have it
        for number in range(2):
            if (child := os.fork()) == 0:
                status = 1
                try:
                    for _ in range(50):
                        appended(log, batch(b"c%d" % number))
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        for _ in range(50):
            appended(log, batch(b"p"))
        assert log.log_end_offset == 51
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    values = [value for _, value in contents(log)]
    assert [values.count(v) for v in (b"p", b"c0", b"c1")] == [51, 50, 50]
    assert list(log.verify()) == []


def test_threads_share_a_log(log):
    threads = [
        threading.Thread(target=lambda n=n: [appended(log, batch(b"%d" % n)) for _ in range(100)]) for n in range(4)
    ]
    seen = []
    for thread in threads:
        thread.start()
    while len(seen) < 400:
        seen += contents(log, len(seen), max_bytes=2_000)
    for thread in threads:
        thread.join()
    assert [offset for offset, _ in seen] == list(range(400))
    assert contents(log) == seen


@pytest.mark.parametrize("attempt", range(5))
def test_a_writer_that_is_killed_holds_up_nobody_and_leaves_whole_batches(log, attempt):
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=append_for_ever, args=(str(log.directory),))
    victim.start()
    while log.log_end_offset < 80 * (attempt + 1):
        pass
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    end = log.log_end_offset
    info = appended(log, batch(b"after"))
    assert info.first_offset >= end
    rows = contents(log)
    assert [offset for offset, _ in rows] == list(range(info.next_offset))
    assert rows[-1][1] == b"after"
    assert list(log.verify()) == []


def test_an_idle_log_follows_appends_rolls_and_truncations_of_another(log):
    other = reopen(log.directory, Env(), **SETTINGS)
    for number in range(30):
        appended(other, batch(b"%d" % number * 50))
        if number % 7 == 0:
            other.roll()
        assert log.log_end_offset == number + 1
        assert contents(log, number)[0][0] == number
    other.truncate_to(3)
    assert log.log_end_offset == 3
    assert appended(log, batch(b"x")).first_offset == 3
    assert other.log_end_offset == 4


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_partition_is_stale_even_if_there_is_a_new_one_of_its_name(log, again):
    appended(log, batch(b"old"))
    log.directory.rename(log.directory.with_name("t-0.gone.deleted"))
    if again:
        create(log.directory, topic_id="B" * 22, env=Env())
        appended(reopen(log.directory, Env(), topic_id="B" * 22), batch(b"new"))
    for use in (
        lambda: appended(log, batch(b"x")),
        lambda: log.log_end_offset,
        lambda: log.read(0, max_bytes=9),
    ):
        with pytest.raises(StaleLogError, match="look the topic up again"):
            use()
    with pytest.raises(StaleLogError):
        reopen(log.directory, Env(), topic_id=TOPIC_ID)
    if again:
        assert contents(reopen(log.directory, Env(), topic_id="B" * 22)) == [(0, b"new")]


def test_a_failed_fsync_stops_the_other_processes_too(log, tmp_path):
    appended(log, batch(b"x"))
    (tmp_path / ".fsync-failed").write_text("12 t-0: EIO")
    context = multiprocessing.get_context("fork")
    out, into = context.Pipe(duplex=False)

    def child() -> None:
        try:
            appended(reopen(log.directory, Env(), **SETTINGS), batch(b"y"))
        except FailedStoreError as error:
            into.send(str(error))

    process = context.Process(target=child)
    process.start()
    process.join(30)
    assert out.poll()
    assert "EIO" in out.recv()


def test_segments_that_went_within_one_time_stamp_are_missed_at_a_second_look(root, env, disk):
    other = make(root, env, segment_bytes=200, max_message_bytes=200)
    for number in range(6):
        appended(other, batch(b"value %d" % number))
    log = reopen(other.directory, env, segment_bytes=200, max_message_bytes=200)
    assert len(log.segments()) == 3
    known = dict(disk.directories)

    other.advance_start(4)
    disk.directories.update(known)

    assert log.segments() == other.segments()
