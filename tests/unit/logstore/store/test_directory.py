"""A store directory: whose it is, who may open it, and what happens when several do."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore import NotAStoreError, ReadOnlyStoreError, StoreLockedError
from logstore.env import SYSTEM, Env, OsFiles
from logstore.env.machine import MOUNTS
from logstore.store.log_dir import LogDir
from tests.support.fork_server import quick
from tests.support.repeats import only_long
from tests.unit.logstore.store.conftest import rows

NOBODY = 65534


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(NotAStoreError, match=r"not a pylog store.*thesis\.txt"):
        logstore.open(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(NotAStoreError, match="is a file"):
        logstore.open(tmp_path / "f")


def test_nothing_is_created_when_reading(tmp_path: Path) -> None:
    for options in ({"mode": "r"}, {"create": False}):
        with pytest.raises(NotAStoreError, match="no such directory"):
            logstore.open(tmp_path / "none", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    logstore.open(tmp_path).close()
    meta = tmp_path / "meta.properties"
    meta.write_text(meta.read_text().replace("pylog.format=1", "pylog.format=2"))
    with pytest.raises(NotAStoreError, match="format 2; this version of pylog knows up to 1: upgrade"):
        logstore.open(tmp_path)


def test_a_store_opened_for_reading_refuses_writes(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    before = sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    with logstore.open(tmp_path, mode="r") as store:
        assert store.read_only
        assert store.read("t", partition=0).read_all()["value"].to_pylist() == [b"a"]
        for change in (
            lambda: store.append("t", rows(["b"])),
            lambda: store.create_topic("u"),
            lambda: store.alter_topic("t", partitions=2),
            lambda: store.delete_topic("t"),
            store.recover,
        ):
            with pytest.raises(ReadOnlyStoreError, match="open for reading only"):
                change()
    assert sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not write")
def test_a_directory_that_one_may_only_read_opens_read_only(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    for path in [tmp_path, *tmp_path.parents]:
        if path != Path("/") and path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o055)

    def as_nobody(results: multiprocessing.Queue[object]) -> None:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        with logstore.open(tmp_path, env=Env(files=OsFiles())) as store:
            results.put((store.read_only, store.read("t", partition=0).read_all()["value"].to_pylist()))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=as_nobody, args=(results,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get(timeout=10) == (True, [b"a"])


def test_a_directory_that_a_broker_holds_is_refused_with_its_name(tmp_path: Path) -> None:
    logstore.open(tmp_path).close()
    holder = os.open(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    os.write(holder, b"broker 1, process 4711")
    try:
        for mode in ("auto", "r"):
            with pytest.raises(StoreLockedError, match=r"broker 1, process 4711.*go through it"):
                logstore.open(tmp_path, mode=mode)  # type: ignore[arg-type]
    finally:
        os.close(holder)
    logstore.open(tmp_path).close()


def test_a_purpose_that_needs_the_directory_alone_is_refused_while_others_have_it(tmp_path: Path) -> None:
    with logstore.open(tmp_path), pytest.raises(StoreLockedError, match="recovery needs it alone"):
        LogDir.open(tmp_path, read_only=False, create=False, env=SYSTEM, alone_for="recovery")


def test_the_clean_marker_is_removed_by_the_first_change_and_written_by_the_last_to_close(
    tmp_path: Path,
) -> None:
    marker = tmp_path / ".kafka_cleanshutdown"
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
    assert marker.exists()
    with logstore.open(tmp_path) as reader:
        reader.topics()
        assert marker.exists(), "looking changes nothing"
    one, two = logstore.open(tmp_path), logstore.open(tmp_path)
    one.append("t", rows(["a"]))
    assert not marker.exists()
    one.close()
    assert not marker.exists(), "another process still has it open"
    two.close()
    assert marker.exists()


def test_recovery_points_never_go_back_and_keep_those_of_other_processes(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        a, b = store.create_topic("a").topic_id, store.create_topic("b", partitions=2).topic_id
        log_dir = LogDir.open(tmp_path, read_only=False, create=False, env=SYSTEM)
        log_dir.recovery_points.advance({("a", 0): (a, 5), ("b", 1): (b, 7)})
        log_dir.recovery_points.advance({("a", 0): (a, 3)})
        assert log_dir.recovery_points.read() == {("a", 0): 5, ("b", 1): 7}
        log_dir.close()


@pytest.mark.parametrize("text", ["", "0\n", "9\n1\nt 0 1\n", "0\n2\nt 0 1\n", "0\n1\nt zero 1\n", "\xff"])
def test_unreadable_recovery_points_mean_that_everything_is_checked(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    (tmp_path / "recovery-point-offset-checkpoint").write_text(text, encoding="latin-1")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with caplog.at_level(logging.WARNING), logstore.open(tmp_path) as store:
        assert store.read("t", partition=0).read_all().num_rows == 1
    assert "checked from their start" in caplog.text


@pytest.mark.parametrize("position", range(0, 30, 2))
def test_s15_a_flipped_digit_in_the_recovery_points_is_not_blamed_on_the_log(tmp_path: Path, position: int) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=2)
        store.append("t", rows(["a", "b"], partition=[0, 1]))
    path = tmp_path / "recovery-point-offset-checkpoint"
    text = bytearray(path.read_bytes())
    text[position] ^= 0x08  # 1 becomes 9
    path.write_bytes(text)
    with logstore.open(tmp_path) as store:
        assert [store.read("t", partition=p).read_all().num_rows for p in (0, 1)] == [1, 1]
        store.append("t", rows(["c", "d"], partition=[0, 1]))
    with logstore.open(tmp_path) as store:
        assert [store.read("t", partition=p).read_all().num_rows for p in (0, 1)] == [2, 2]


WRITER = quick("""
import sys, pyarrow as pa, logstore
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with logstore.open(path) as store:
    for i in range(count):
        value = f"{name}:{i}"
        store.append("t", pa.table({"key": [name], "value": [value]}))
        print(value, flush=True)
""")


def test_several_processes_append_at_once_and_nothing_is_lost_or_reordered(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": 3000})
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        writers = [subprocess.Popen([*command, f"w{i}", "100"], stdout=subprocess.PIPE) for i in range(3)]
        for i in range(100):
            store.append("t", pa.table({"key": ["me"], "value": [f"me:{i}"]}))
        for writer in writers:
            writer.communicate(timeout=120)
            assert writer.returncode == 0
        found = [v.decode() for p in (0, 1) for v in store.read("t", partition=p).read_all()["value"].to_pylist()]
        for name in ("w0", "w1", "w2", "me"):
            assert [v for v in found if v.startswith(name)] == [f"{name}:{i}" for i in range(100)]
        assert len(found) == 400
        assert all(list(log.verify()) == [] for log in (store.log("t", 0), store.log("t", 1)))


@only_long("a process that is killed, as in tests/crash")
def test_what_a_killed_writer_had_acknowledged_is_there(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config={"segment.bytes": 3000})
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), "w", "1000000"], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.communicate()[0].split()
        store.append("t", rows(["after"]))
        found = [v.decode() for v in store.read("t", partition=0).read_all()["value"].to_pylist()]
        assert found[: len(acknowledged)] == acknowledged
        assert found[-1] == "after"
        assert len(found) <= len(acknowledged) + 2
        assert list(store.log("t", 0).verify()) == []


def test_a_forked_child_uses_locks_of_its_own(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["parent"]))

        def child() -> None:
            for _ in range(100):
                store.append("t", rows(["child"]))
            store.close()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        for _ in range(100):
            store.append("t", rows(["parent"]))
        process.join(60)
        assert process.exitcode == 0
        store.append("t", rows(["parent"]))
        values = store.read("t", partition=0).read_all()["value"].to_pylist()
        assert (values.count(b"parent"), values.count(b"child")) == (102, 100)
        assert list(store.log("t", 0).verify()) == []


def test_the_first_to_open_after_a_crash_cuts_a_torn_tail_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a", "b"]))
        path = Path(store.log("t", 0).segments()[-1].path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    with caplog.at_level(logging.WARNING), logstore.open(tmp_path) as store:
        assert path.read_bytes() == whole
        assert "bytes" in caplog.text
        assert store.read("t", partition=0).read_all()["value"].to_pylist() == [b"a", b"b"]


def test_an_fsync_that_failed_takes_the_store_out_of_service_until_recovery(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    (tmp_path / ".fsync-failed").write_text("1 disk on fire\n")
    with logstore.open(tmp_path) as store:
        for change in (lambda: store.append("t", rows(["b"])), lambda: store.create_topic("u")):
            with pytest.raises(logstore.FailedStoreError, match=r"disk on fire.*pylog recover"):
                change()
        assert store.read("t", partition=0).read_all().num_rows == 1
    reports = logstore.recover(tmp_path)
    assert [r.log_end_offset for r in reports] == [1]
    with logstore.open(tmp_path) as store:
        store.append("t", rows(["b"]))


def test_a_network_file_system_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class OnNfs(OsFiles):
        def read_all(self, path: str | Path) -> bytes:
            return b"host:/data / nfs4 rw 0 0\n" if path == MOUNTS else super().read_all(path)

    with caplog.at_level(logging.WARNING):
        logstore.open(tmp_path, env=Env(files=OnNfs())).close()
    assert "network file system (nfs4)" in caplog.text


def test_importing_loads_nothing_but_the_name() -> None:
    code = """if True:
        import json, sys
        import logstore
        loaded = [name for name in sys.modules if name.startswith("logstore.")]
        found = [issubclass(logstore.StoreError, logstore.errors.PylogError), callable(logstore.open)]
        print(json.dumps([loaded, found, sorted(sys.modules)]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded, found, modules = json.loads(done.stdout)
    assert loaded == []
    assert found == [True, True]
    assert not {"numba", "numpy", "pyarrow", "pyspark"} & set(modules)
    with pytest.raises(AttributeError, match="'logstore' has no attribute 'opn'"):
        _ = logstore.opn


def test_a_store_whose_directory_was_removed_can_be_closed(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "gone")
    store.create_topic("t")
    store.append("t", rows(["a"]))
    shutil.rmtree(tmp_path / "gone")
    store.close()
    assert not (tmp_path / "gone").exists()


def test_a_closed_store_has_no_file_open(tmp_path):
    """The file system can be unmounted without waiting for garbage to be collected."""
    with logstore.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        store.append("t", pa.table({"value": ["a", "b"]}))
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    assert [link for link in links if link.startswith(str(tmp_path))] == []
    assert store.path == tmp_path / "data"  # it is no garbage
