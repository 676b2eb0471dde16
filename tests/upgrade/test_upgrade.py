"""A store that an earlier version wrote: the present code reads the very same records, and goes on with it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore.env import Env, OsFiles
from tests.support.disk import StillClock
from tests.upgrade.make_store import contents, rows

HOUR_MS = 3_600_000


@pytest.fixture(params=["closed", "killed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("store.tar.xz")) as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # 3.11 has it from 3.11.4 on
        archive.extractall(tmp_path)
    return tmp_path / request.param


def made_ms(path: Path) -> int:
    """When the store was made."""
    return int(path.with_name("made_ms").read_text())


def opened(path: Path, *, later_ms: int = 0) -> logstore.LogStore:
    """The store, opened at the time when it was made, or later."""
    return logstore.open(path, env=Env(clock=StillClock(made_ms(path) + later_ms), files=OsFiles()))


def expected(path: Path) -> dict[str, list[list[object]]]:
    """The records that the earlier version read there."""
    return json.loads(path.with_suffix(".json").read_text())


def decided(found: dict[str, list[list[object]]], path: Path) -> dict[str, list[list[object]]]:
    """The records once the open transaction of the killed process is aborted: those behind it, too."""
    if path.name == "closed":
        return found
    for key, records in found.items():
        if key.startswith("ledger") and key.endswith("read_committed"):
            after = found[key.replace("committed", "uncommitted")]
            records += [r for r in after if r[0] > records[-1][0] and int(r[3].split("-")[1].split()[0]) >= 9100]
    return found


def test_the_same_records_are_read(path: Path) -> None:
    known = decided(expected(path), path)
    assert sum(map(len, known.values())) > 700
    for _ in range(2):
        with opened(path) as store:
            assert contents(store) == known
            assert [d.reason for info in store.topics() for p in range(info.partitions)
                    for d in store.log(info.name, p).verify()] == []  # fmt: skip


def test_it_is_appended_to_compacted_and_expired(path: Path) -> None:
    known = decided(expected(path), path)
    with opened(path) as store:
        ends = store.offsets("plain")
        assert store.append("plain", rows(5000, 10)) == {
            p: logstore.OffsetRange(ends[p].end, ends[p].end + 5) for p in ends
        }
        with store.transaction("batches", batch_id=5) as replay:
            assert store.append("ledger", rows(500, 10, now_ms=made_ms(path)), transaction=replay) == {}
        with store.transaction("batches", batch_id=6) as transaction:
            store.append("ledger", rows(600, 10), transaction=transaction)
        before = known["compacted/0/read_committed"]
        assert store.compact("compacted", 0).rounds == 1
        after = contents(store)["compacted/0/read_committed"]
        assert {r[2]: r for r in before} == {r[2]: r for r in after}
        assert len(after) < len(before)
        assert len(contents(store)["ledger/0/read_committed"]) > len(known["ledger/0/read_committed"])
    with opened(path, later_ms=14 * HOUR_MS) as store:
        start = store.offsets("plain")[0].start
        assert start >= ends[0].start
        assert store.expire("plain", 0).log_start_after > ends[0].start
    with opened(path, later_ms=29 * 24 * HOUR_MS):
        assert list(path.glob("gone-0.*"))
    with opened(path, later_ms=29 * 24 * HOUR_MS) as store:
        store.create_topic("gone")
        store.append("gone", pa.table({"value": ["new"]}))
        assert len(contents(store)["gone/0/read_committed"]) == 1
