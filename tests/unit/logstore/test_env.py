"""The edge to the operating system: bounded descriptors, locks, errors with names."""

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logstore.checkpoint import FSYNC_FAILED, check_mark, clear_mark, fsync_or_mark
from logstore.env import Env, OsFiles, network_file_system
from logstore.env.descriptors import Descriptors
from logstore.env.files import file_system_of
from logstore.errors import DiskFullError, FailedStoreError, StorageError
from logstore.worker import Worker
from tests.support.partition import appended, batch, contents, make


def open_files(files):
    return len(files.descriptors.open)


@pytest.fixture
def files():
    return OsFiles(open_files_max=4)


def test_open_files_are_bounded_and_every_file_can_still_be_read(files, tmp_path):
    for number in range(20):
        files.create(tmp_path / f"{number}")
        files.write(tmp_path / f"{number}", 0, b"%d" % number)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in list(range(20)) * 2:
        assert files.read(tmp_path / f"{number}", 0, 9) == b"%d" % number
        assert open_files(files) <= 4
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_of_more_files_than_there_is_room_for_most_of_those_that_are_kept_are_used_again(files, tmp_path, monkeypatch):
    for number in range(6):
        files.create(tmp_path / f"{number}")
    opened, really = [], os.open
    monkeypatch.setattr(os, "open", lambda *args, **options: opened.append(args[0]) or really(*args, **options))
    for number in list(range(6)) * 50:  # the least recently used is always the next
        files.read(tmp_path / f"{number}", 0, 1)
    assert len(opened) < 200
    for number in list(range(3)) * 20:
        files.read(tmp_path / f"{number}", 0, 1)
    del opened[:]
    for number in range(3):
        files.read(tmp_path / f"{number}", 0, 1)
    assert not opened  # what is used now is kept in the end


def test_a_file_that_is_read_again_and_again_is_opened_once_though_the_pool_is_full(files, tmp_path, monkeypatch):
    for number in range(9):
        files.create(tmp_path / f"{number}")
        files.write(tmp_path / f"{number}", 0, b"%d" % number)
    for number in (0, 1, 2, 3) * 9:  # the pool has these
        files.read(tmp_path / f"{number}", 0, 1)
    opened, really = [], os.open
    monkeypatch.setattr(os, "open", lambda *args, **options: opened.append(args[1]) or really(*args, **options))
    for _ in range(5):
        assert files.read(tmp_path / "7", 0, 1) == b"7"
    assert len(opened) == 1
    files.write(tmp_path / "7", 0, b"x")
    assert files.read(tmp_path / "7", 0, 1) == b"x"
    assert opened[1:] == [os.O_RDWR]
    files.rename(tmp_path / "8", tmp_path / "7")
    assert files.read(tmp_path / "7", 0, 1) == b"8"


def test_a_directory_that_was_settled_shows_the_next_change_though_no_time_has_passed(files, tmp_path):
    files.create(tmp_path / "a")
    settled = files.settle(tmp_path)
    assert settled == files.stat(tmp_path) == files.list(tmp_path).stat
    assert files.list(tmp_path).settled
    assert files.settle(tmp_path) != settled
    files.create(tmp_path / "b")
    assert files.stat(tmp_path) != settled
    assert not files.list(tmp_path).settled


def test_a_directory_is_not_settled_where_times_are_coarse_or_another_user_owns_it(files, tmp_path, monkeypatch):
    really = os.utime
    monkeypatch.setattr(os, "utime", lambda path, ns: really(path, ns=(ns[0], ns[1] // 10**9 * 10**9)))
    assert files.settle(tmp_path) is None

    def refused(*_args, **_options):
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "utime", refused)
    assert files.settle(tmp_path) is None


def test_what_is_open_in_a_directory_is_opened_anew_after_that_was_renamed(files, tmp_path):
    for directory in ("a", "ab"):
        files.mkdir(tmp_path / directory)
        files.create(tmp_path / directory / "f")
        files.write(tmp_path / directory / "f", 0, directory.encode())
    files.rename(tmp_path / "a", tmp_path / "c")
    files.rename(tmp_path / "ab", tmp_path / "a")
    assert files.read(tmp_path / "a" / "f", 0, 9) == b"ab"
    assert files.read(tmp_path / "c" / "f", 0, 9) == b"a"
    files.unlink(tmp_path / "c" / "f")
    files.create(tmp_path / "c" / "f")
    assert files.read(tmp_path / "c" / "f", 0, 9) == b""
    assert set(files.descriptors.open_in) == {str(tmp_path / "a"), str(tmp_path / "c")}


def test_a_file_that_leaves_the_pool_stays_open_for_its_user(files, tmp_path):
    files.create(tmp_path / "a")
    files.write(tmp_path / "a", 0, b"content")
    held = files.descriptors.at(str(tmp_path / "a"))
    files.forget(tmp_path)
    assert open_files(files) == 0
    assert os.pread(held.fd, 9, 0) == b"content"


def test_a_file_that_another_thread_lets_go_is_open_until_the_call_is_over(tmp_path):
    class Forgetful(Descriptors):
        """Somebody lets go of each file as soon as it was taken out of the pool."""

        def at(self, path, **options):
            file = super().at(path, **options)
            self.forget(path)
            return file

    files, path = OsFiles(), tmp_path / "f"
    files.descriptors = Forgetful(4)
    files.create(path)
    files.write(path, 0, b"abc")
    files.fsync(path)
    files.allocate(path, 4)
    files.drop_cache(path)
    files.truncate(path, 2)
    assert files.read(path, 0, 9) == b"ab"
    assert files.read_into(path, 0, memoryview(bytearray(9))) == 2


def test_threads_may_read_more_files_than_the_pool_holds(files, tmp_path):
    for number in range(12):
        files.create(tmp_path / f"{number}")
        files.write(tmp_path / f"{number}", 0, b"%02d" % number)
    wrong = []

    def read() -> None:
        for number in list(range(12)) * 60:
            if files.read(tmp_path / f"{number}", 0, 9) != b"%02d" % number:
                wrong.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_renamed_file_is_opened_anew(files, tmp_path):
    for name in ("old", "new"):
        files.create(tmp_path / name)
        files.write(tmp_path / name, 0, name.encode())
    assert files.read(tmp_path / "old", 0, 9) == b"old"
    files.rename(tmp_path / "new", tmp_path / "old")
    assert files.read(tmp_path / "old", 0, 9) == b"new"


def test_reads_are_whole_or_end_with_the_file(files, tmp_path):
    files.create(tmp_path / "a")
    files.write(tmp_path / "a", 0, b"0123456789")
    space = bytearray(8)
    assert files.read_into(tmp_path / "a", 6, memoryview(space)) == 4
    assert space[:4] == b"6789"
    assert files.read(tmp_path / "a", 8, 10) == b"89"
    assert files.read_all(tmp_path / "a") == b"0123456789"


def test_what_is_missing_is_no_failure_of_the_disk(files, tmp_path):
    assert files.stat(tmp_path / "a") is None
    files.unlink(tmp_path / "a")
    files.rmdir(tmp_path / "a")
    for use in (files.read_all, files.list, lambda p: files.read(p, 0, 1), lambda p: files.write(p, 0, b"x")):
        with pytest.raises(FileNotFoundError) as caught:
            use(tmp_path / "a")
        assert not isinstance(caught.value, StorageError)


def test_other_errors_say_what_and_where(files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"{tmp_path}/file: cannot list: Not a directory"):
        files.list(tmp_path / "file")


def test_a_directory_listed_at_once_after_a_change_is_not_settled(files, tmp_path):
    files.create(tmp_path / "a")
    assert not files.list(tmp_path).settled
    os.utime(tmp_path, ns=(0, 1_000_000_000))
    assert files.list(tmp_path).settled


def test_locks_keep_out_other_holders_of_this_process_and_of_others(files, tmp_path):
    held = files.lock(tmp_path / "lock")
    assert files.lock(tmp_path / "lock", wait=False) is None
    assert files.lock(tmp_path / "lock", shared=True, wait=False) is None
    script = f"import fcntl; fcntl.flock(open({str(tmp_path / 'lock')!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False).returncode == 1
    held.release()
    held.release()
    shared = [files.lock(tmp_path / "lock", shared=True, wait=False) for _ in range(2)]
    assert None not in shared
    assert files.lock(tmp_path / "lock", wait=False) is None


def test_a_lock_held_at_a_fork_is_the_parents_alone(files, tmp_path):
    held = files.lock(tmp_path / "lock")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, b"1" if files.lock(tmp_path / "lock", wait=False) is None else b"0")
        held.release()  # must not unlock the parent's
        os.read(0, 0)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert files.lock(tmp_path / "lock", wait=False) is None
    held.release()
    os.close(read)
    os.close(write)


def test_a_shared_lock_that_cannot_be_made_is_a_missing_file(files, tmp_path, monkeypatch):
    real = os.open

    def read_only_directory(path, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only_directory)
    with pytest.raises(FileNotFoundError):
        files.lock(tmp_path / "lock", shared=True)
    with pytest.raises(StorageError, match="cannot lock: Read-only"):
        files.lock(tmp_path / "lock")


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n", "nfs4"),
        ("/dev/sda / ext4 rw 0 0\nserver:/x /dat nfs4 rw 0 0\n", "ext4"),
        ("server:/x / nfs rw 0 0\n/dev/sda /data xfs rw 0 0\n", "xfs"),
        ("a /data\\040b nfs rw 0 0\nb /data cifs rw 0 0\n", "cifs"),
    ],
)
def test_the_mount_nearest_above_says_what_file_system_it_is(mounts, kind):
    assert file_system_of("/data/logs", mounts) == kind


def test_this_machines_files_are_local(files, tmp_path):
    assert network_file_system(files, tmp_path) is None


# ------------------------------------------------------------------ S8, S9 as the system has them


def test_s8_an_fsync_that_fails_leaves_the_mark_until_it_is_cleared(tmp_path, monkeypatch):
    env = Env(files=OsFiles())
    log = make(tmp_path, env)
    appended(log, batch(b"x"))
    real = os.fsync

    def failing(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(FailedStoreError, match="Input/output error"):
            log.flush()
    assert "Input/output error" in (tmp_path / FSYNC_FAILED).read_text()
    with pytest.raises(FailedStoreError, match="Input/output error"):
        appended(log, batch(b"y"))
    clear_mark(env, tmp_path)
    check_mark(env, tmp_path)
    fsync_or_mark(env, tmp_path, tmp_path)
    appended(log, batch(b"y"))
    assert contents(log) == [(0, b"x"), (1, b"y")]


@pytest.fixture
def file_size_limit():
    """No file may grow beyond 5,000 bytes: the system refuses the rest of a write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_s9_a_write_that_the_system_cuts_short_is_undone(tmp_path, file_size_limit):
    log = make(tmp_path, Env(files=OsFiles()))
    appended(log, batch(b"x" * 1000))
    with pytest.raises(DiskFullError, match="free some space"):
        appended(log, bytearray().join(batch(b"y" * 1000) for _ in range(6)))
    assert contents(log) == [(0, b"x" * 1000)]
    assert Path(log.segments()[0].path).stat().st_size == log.segments()[0].size_bytes
    assert appended(log, batch(b"z")).first_offset == 1


def test_s9_a_file_system_that_is_full(tmp_path):
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)],
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if mount.returncode:
        pytest.skip("no right to mount a small file system here")
    try:
        log = make(tmp_path, Env(files=OsFiles()), segment_bytes=60_000)
        with contextlib.suppress(DiskFullError):
            while True:
                appended(log, bytearray().join(batch(b"x" * 9_000) for _ in range(3)))
        end = log.log_end_offset
        assert end > 15
        assert end % 3 == 0, "all of them or none"
        assert [offset for offset, _ in contents(log)] == list(range(end))
        assert list(log.verify()) == []
        log.close()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_worker_acts_once_for_each_wake_and_ends_after_all_of_them():
    acts = []
    worker = Worker(lambda: acts.append(threading.current_thread().name), "some name")
    for _ in range(3):
        worker.wake()
    worker.end()
    assert acts == ["some name"] * 3


def test_a_worker_with_an_interval_also_acts_unasked():
    acted = threading.Event()
    worker = Worker(acted.set, "by the clock", 0.001)
    assert acted.wait(10)
    worker.end()


def test_a_restricted_file_is_read_by_nobody_else(files, tmp_path):
    files.create(tmp_path / "token")
    files.restrict(tmp_path / "token")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
