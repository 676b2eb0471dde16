"""The reactions of a store when the disk is full or failing, and when files are damaged or were left half made."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from pathlib import Path

import pytest

import logstore
from logstore import CorruptLogError, DiskFullError, FailedStoreError, ReadOnlyStoreError, StoreError
from logstore.env import Env, OsFiles
from tests.unit.logstore.store.conftest import rows

CLEAN = ".kafka_cleanshutdown"
POINTS = "recovery-point-offset-checkpoint"


class WeakFiles(OsFiles):
    """Files on a disk that may be full, and may fail to sync."""

    is_full = False
    sync_fails = False

    def write(self, path, position, data):  # type: ignore[no-untyped-def]
        if self.is_full and data:
            raise DiskFullError(f"{path}: cannot write: full", path=str(path))
        super().write(path, position, data)

    def fsync(self, path):  # type: ignore[no-untyped-def]
        if self.sync_fails and str(path).endswith(".log"):
            raise FailedStoreError(f"{path}: fsync failed", path=str(path), reason="EIO")
        super().fsync(path)


def damage_first_batch(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[65] ^= 0xFF
    path.write_bytes(data)


def test_an_fsync_that_failed_is_never_followed_by_one_that_is_believed(tmp_path: Path) -> None:
    files = WeakFiles()
    store, other = logstore.open(tmp_path, env=Env(files=files)), logstore.open(tmp_path)
    store.create_topic("t")
    store.append("t", rows(["a"]))
    other.append("t", rows(["b"]))
    files.sync_fails = True
    with pytest.raises(FailedStoreError):
        store.flush()
    files.sync_fails = False
    for each in (store, other):
        with pytest.raises(FailedStoreError, match="pylog recover"):
            each.flush()
        with pytest.raises(FailedStoreError):
            each.close()
    assert not (tmp_path / CLEAN).exists()
    assert not (tmp_path / POINTS).exists()


def test_recovery_after_a_failed_fsync_looks_at_the_disk_and_not_at_the_cache(tmp_path: Path) -> None:
    class ForgetfulDisk(OsFiles):
        """The cache has bytes of a log that were never written to the disk."""

        def drop_cache(self, path):  # type: ignore[no-untyped-def]
            super().drop_cache(path)
            damage_first_batch(Path(path))

    store = logstore.open(tmp_path)
    store.create_topic("t")
    store.append("t", rows(["a"]))
    (tmp_path / ".fsync-failed").write_text("1 disk on fire\n")
    with pytest.raises(FailedStoreError):
        store.close()
    reports = logstore.recover(tmp_path, env=Env(files=ForgetfulDisk()))
    assert [report.log_end_offset for report in reports] == [0]


def test_a_full_disk_can_be_opened_and_read_and_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    files = WeakFiles()
    files.is_full = True
    (tmp_path / CLEAN).unlink()
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        assert store.read("t", partition=0).read_all().num_rows == 1
        with pytest.raises(DiskFullError):
            store.append("t", rows(["b"]))
        with pytest.raises(DiskFullError):
            store.create_topic("u")
    files.is_full = False
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        assert store.append("t", rows(["b"]))[0].start == 1
        store.create_topic("u")


def test_what_was_synced_counts_even_if_there_is_no_room_to_note_how_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = WeakFiles()
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        files.is_full = True
        with caplog.at_level(logging.WARNING):
            store.flush()
        assert "recovery points are not stored" in caplog.text
        files.is_full = False


def test_no_lock_stays_behind_when_opening_fails(tmp_path: Path) -> None:
    logstore.open(tmp_path).close()
    meta = tmp_path / "meta.properties"
    good = meta.read_text()
    meta.write_text("garbage")
    with pytest.raises(logstore.NotAStoreError, match=r"add the line pylog\.format=1"):
        logstore.open(tmp_path)
    meta.write_text(good)
    assert logstore.recover(tmp_path) == []


def test_recovery_goes_on_behind_a_damaged_partition_and_leaves_the_store_unclean(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=2)
        store.append("t", rows(["a", "b"], partition=[0, 1]))
        damaged, torn = (Path(store.log("t", p).segments()[0].path) for p in (0, 1))
    whole = torn.read_bytes()
    for open_again in (lambda: logstore.open(tmp_path).close(), lambda: logstore.recover(tmp_path)):
        damage_first_batch(damaged)
        torn.write_bytes(whole + whole[:40])
        (tmp_path / CLEAN).unlink(missing_ok=True)
        if "recover" in open_again.__code__.co_names:
            with pytest.raises(CorruptLogError, match="restore the file"):
                open_again()
        else:
            open_again()
        assert torn.read_bytes() == whole
        assert not (tmp_path / CLEAN).exists(), "what was not recovered must be, by the next one"
        damage_first_batch(damaged)


def test_a_store_whose_creation_was_cut_short_is_completed(tmp_path: Path) -> None:
    logstore.open(tmp_path).close()
    for path in (tmp_path / "topics").rglob("*"):
        if path.is_file():
            path.unlink()
    (tmp_path / "topics" / ".deleted").rmdir()
    (tmp_path / "topics").rmdir()
    (tmp_path / CLEAN).unlink()
    with logstore.open(tmp_path) as store:
        store.create_topic("t")


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff", '{"version": 1}', "[" * 100_000])
def test_a_damaged_note_of_a_deletion_is_reported_and_ignored(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    logstore.open(tmp_path).close()
    (tmp_path / "topics" / ".deleted" / "x.json").write_text(text, encoding="latin-1")
    with caplog.at_level(logging.WARNING), logstore.open(tmp_path) as store:
        store.create_topic("t")
    assert "x.json ignored" in caplog.text


def test_files_of_a_deleted_topic_that_cannot_be_removed_do_not_get_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config={"file.delete.delay.ms": 0})
        (tmp_path / "t-0" / "somebody's directory").mkdir()
        with caplog.at_level(logging.WARNING):
            store.delete_topic("t")
        assert "files of the deleted topic t stay for now" in caplog.text
        assert store.topics() == []
        store.create_topic("t")
    logstore.open(tmp_path).close()


@pytest.mark.parametrize(
    "change", [{"config": []}, {"config": None}, {"partitions": "many"}, {"partitions": 0}, {"name": "../x"}]
)
def test_a_topic_description_that_makes_no_sense_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        path = tmp_path / "topics" / "t.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(StoreError, match=r"not a topic description.*restore it"):
            store.topic("t")


def test_a_reader_does_not_keep_the_first_writer_from_recovering(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        path = Path(store.log("t", 0).segments()[0].path)
    (tmp_path / CLEAN).unlink()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    with logstore.open(tmp_path, mode="r") as reader:
        with logstore.open(tmp_path):
            assert path.read_bytes() == whole
        assert (tmp_path / CLEAN).exists()
        assert reader.read("t", partition=0).read_all().num_rows == 1


def test_a_reader_passes_by_the_note_of_one_that_was_killed(tmp_path: Path) -> None:
    logstore.open(tmp_path).close()
    (tmp_path / ".lock").write_text("broker 1, process 4711")
    with logstore.open(tmp_path, mode="r") as reader:
        assert reader.topics() == []


def test_a_store_without_a_lock_file_on_a_read_only_disk_can_be_read(tmp_path: Path) -> None:
    class ReadOnlyDisk(OsFiles):
        def is_writable(self, path: object) -> bool:
            return False

        def lock(self, path, **options):  # type: ignore[no-untyped-def]
            raise FileNotFoundError(errno.ENOENT, "no lock file", str(path))

    logstore.open(tmp_path).close()
    (tmp_path / ".lock").unlink()
    with logstore.open(tmp_path, env=Env(files=ReadOnlyDisk())) as store:
        assert store.read_only
        store.flush()
        (tmp_path / ".lock").touch()
        with pytest.raises(ReadOnlyStoreError, match="can only be read: this user may not write there"):
            store.create_topic("t")


def test_a_store_that_was_removed_says_so_to_who_would_write_there(tmp_path: Path) -> None:
    root = tmp_path / "log"
    logstore.open(root).close()
    with logstore.open(root, mode="r") as store:
        shutil.rmtree(root)
        with pytest.raises(ReadOnlyStoreError, match="is there no more"):
            store.create_topic("t")
