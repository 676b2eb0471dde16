"""One store used by threads, forked children and other stores at once, while topics come and go."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import InvalidRequestError, UnknownTopicError
from logstore.env import SYSTEM, Env, OsFiles
from logstore.errors import StaleLogError
from logstore.store.log_dir import LogDir
from tests.unit.logstore.store.conftest import rows

CLEAN = ".kafka_cleanshutdown"


class PausedFiles(OsFiles):
    """Files that do something else first, once, when a path is written or synced."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}

    def _meanwhile(self, action: str, path: object) -> None:
        if str(path).endswith(".log") and (act := self.before.pop(action, None)):
            act()

    def write(self, path, position, data):  # type: ignore[no-untyped-def]
        self._meanwhile("write", path)
        super().write(path, position, data)

    def fsync(self, path):  # type: ignore[no-untyped-def]
        self._meanwhile("fsync", path)
        super().fsync(path)


def recovery_points(path: Path) -> dict[tuple[str, int], int]:
    log_dir = LogDir.open(path, read_only=True, create=False, env=SYSTEM)
    return log_dir.recovery_points.read()


def in_child(act: Callable[[], object]) -> None:
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(30)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


def in_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_threads_share_a_store(tmp_path: Path) -> None:
    failed = []

    def work(name: str) -> None:
        try:
            for number in range(20):
                store.append("t", rows([f"{name}:{number}"], key=[name]), flush=number % 4 == 0)
                store.read("t", partition=number % 8).read_all()
        except Exception as error:  # noqa: BLE001  for the assertion below
            failed.append(error)

    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=8)
        threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        values = [v for p in range(8) for v in store.read("t", partition=p).read_all()["value"].to_pylist()]
        for name in (f"w{i}".encode() for i in range(8)):
            mine = [value for value in values if value.startswith(name + b":")]
            assert mine == [b"%s:%d" % (name, number) for number in range(20)]
    assert sum(recovery_points(tmp_path).values()) == 160
    assert (tmp_path / CLEAN).exists()


def test_what_is_appended_while_another_thread_flushes_is_flushed_by_the_next_one(tmp_path: Path) -> None:
    files = PausedFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store, logstore.open(tmp_path):
        store.create_topic("t")
        files.before["write"] = lambda: in_thread(store.flush)
        store.append("t", rows(["a"]))
        store.flush()
        assert recovery_points(tmp_path) == {("t", 0): 1}


def test_a_flush_does_not_rely_on_one_that_is_still_on_its_way(tmp_path: Path) -> None:
    files = PausedFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        seen = []

        def second_flush() -> None:
            store.flush()
            seen.append(recovery_points(tmp_path))

        files.before["fsync"] = lambda: in_thread(second_flush)
        store.flush()
        assert seen == [{("t", 0): 1}]


def test_no_clean_end_is_noted_while_an_append_is_on_its_way(tmp_path: Path) -> None:
    files = PausedFiles()
    store = logstore.open(tmp_path, env=Env(files=files))
    store.create_topic("t")
    files.before["write"] = lambda: in_thread(store.close)
    store.append("t", rows(["a"]))
    assert not (tmp_path / CLEAN).exists()
    with pytest.raises(InvalidRequestError, match="closed; open it again"):
        store.append("t", rows(["b"]))
    with logstore.open(tmp_path) as again:
        assert again.offsets("t")[0].end == 1


def test_a_topic_recreated_while_the_old_one_is_flushed_is_not_taken_for_damaged(tmp_path: Path) -> None:
    files = PausedFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store, logstore.open(tmp_path) as other:
        store.create_topic("t")
        store.append("t", rows(["a"] * 5))

        def make_anew() -> None:
            other.delete_topic("t")
            other.create_topic("t")

        files.before["fsync"] = make_anew
        store.flush()
        assert recovery_points(tmp_path) == {}
        assert store.offsets("t")[0].end == 0
    with logstore.open(tmp_path) as store:
        assert store.append("t", rows(["new"]))[0].start == 0


def test_an_append_to_a_topic_that_is_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    files = PausedFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store, logstore.open(tmp_path) as other:
        store.create_topic("t")
        files.before["write"] = lambda: other.delete_topic("t")
        with pytest.raises(StaleLogError, match="deleted, or recreated"):
            store.append("t", rows(["a"]))


def test_a_reader_of_a_topic_that_is_recreated_never_returns_records_of_the_new_one(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store, logstore.open(tmp_path) as reading:
        store.create_topic("t", config={"max.message.bytes": 3_000_000})
        store.append("t", rows([b"old" * 600_000] * 4))
        reader = reading.read("t", partition=0)
        assert reader.read_next_batch().num_rows >= 1
        store.delete_topic("t")
        store.create_topic("t", config={"max.message.bytes": 3_000_000})
        store.append("t", rows([b"new" * 600_000] * 4))
        reading.offsets("t")
        with pytest.raises(StaleLogError, match=r"deleted, or recreated.*look the topic up again"):
            reader.read_all()


def test_who_follows_a_topic_that_is_recreated_is_told(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"] * 3))
        followers = [store.tail("t", start=start, timeout_ms=0) for start in ("earliest", "latest")]
        assert next(followers[0]).num_rows == 3
        store.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            next(followers[0])
        store.create_topic("t")
        store.append("t", rows(["b"]))
        with pytest.raises(StaleLogError, match="recreated"):
            next(followers[1])


def test_the_latest_record_is_that_of_the_call(store: logstore.LogStore) -> None:
    store.create_topic("t")
    store.append("t", rows(["before"]))
    follower = store.tail("t", timeout_ms=0)
    store.append("t", rows(["after"]))
    assert next(follower)["value"].to_pylist() == [b"after"]


def test_a_forked_child_takes_the_clean_marker_away_before_it_writes(tmp_path: Path) -> None:
    store = logstore.open(tmp_path)
    store.create_topic("t")
    context = multiprocessing.get_context("fork")
    closed = context.Event()

    def child() -> None:
        closed.wait(30)
        store.append("t", rows(["child"]))
        os._exit(int((tmp_path / CLEAN).exists()))

    process = context.Process(target=child)
    process.start()
    store.close()
    assert (tmp_path / CLEAN).exists()
    closed.set()
    process.join(30)
    assert process.exitcode == 0


def test_a_child_that_is_forked_while_a_thread_is_busy_is_not_stuck(tmp_path: Path) -> None:
    files = PausedFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        entered, leave = threading.Event(), threading.Event()

        def close() -> None:
            files.before["fsync"] = lambda: (entered.set(), leave.wait(30))
            store.close()

        closing = threading.Thread(target=close)
        closing.start()
        entered.wait(30)
        try:
            in_child(lambda: store.append("t", rows(["child"]), flush=True))
        finally:
            leave.set()
            closing.join(30)
    with logstore.open(tmp_path) as store:
        assert store.offsets("t")[0].end == 2
