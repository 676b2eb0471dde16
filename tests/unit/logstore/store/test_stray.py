"""Partition directories that belong to no topic: those with records are damage, and nothing else is."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.env import Env
from logstore.log.segments.directory import create
from logstore.store.stray import Unowned, unowned
from logstore.tools.verify import verify_store
from tests.support.disk import Disk, StillClock
from tests.support.repeats import times
from tests.unit.logstore.store.conftest import rows

ROOT = Path("/store")
LOG = f"{0:020}.log"
CONFIG = {"file.delete.delay.ms": 0}


def on(disk: Disk) -> Env:
    return Env(StillClock(10_000_000), disk, random.Random(1))


def make(disk: Disk) -> None:
    with logstore.open(ROOT, env=on(disk)) as store:
        store.create_topic("t", partitions=2, config=CONFIG)
        store.append("t", rows(["a"], partition=[1]), flush=True)


def delete(disk: Disk) -> None:
    with logstore.open(ROOT, env=on(disk)) as store:
        store.delete_topic("t")


def half_deleted(disk: Disk) -> None:
    with logstore.open(ROOT, env=on(disk)) as store:
        store.create_topic("t", partitions=2, config={"file.delete.delay.ms": 1})
        store.append("t", rows(["a"], partition=[1]), flush=True)
        store.delete_topic("t")


def finish(disk: Disk) -> None:
    logstore.open(ROOT, env=Env(StillClock(10_000_001), disk, random.Random(1))).close()


class Meddled:
    """A disk on which others do something before the calls of these numbers."""

    def __init__(self, disk: Disk, steps: Mapping[int, list[Callable[[Disk], None]]]) -> None:
        self.disk, self.steps, self.calls = disk, steps, 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object, **named: object) -> object:
            for step in self.steps.get(self.calls, ()):
                step(self.disk)
            self.calls += 1
            return getattr(self.disk, name)(*arguments, **named)

        return call


def begun(disk: Disk) -> None:
    """A creation of `t` that was killed, or goes on."""
    create(ROOT / "t-0", topic_id="A" * 22, env=on(disk))


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [
        ((), (make,)),
        ((begun,), (make,)),
        ((make,), (delete,)),
        ((make,), (delete, make)),
        ((), (make, delete)),
        ((half_deleted,), (finish,)),
    ][:: times(2, 1)],
)
def test_a_topic_that_comes_or_goes_while_somebody_looks_is_no_damage(before, meanwhile, caplog):
    caplog.set_level("CRITICAL")
    disk = Disk(seed=1)
    disk.mkdir(ROOT)
    logstore.open(ROOT, env=on(disk)).close()
    for step in before:
        step(disk)
    looks, done = 1, 0
    while done < looks:  # a look takes longer when there is more to see
        for places in itertools.combinations_with_replacement(range(done, looks + 1), len(meanwhile)):
            if places[0] != done:
                break
            steps: dict[int, list[Callable[[Disk], None]]] = {}
            for place, step in zip(places, meanwhile, strict=True):
                steps.setdefault(place, []).append(step)
            meddled = Meddled(copy.deepcopy(disk), steps)
            found = unowned(ROOT, Env(StillClock(10_000_000), meddled, random.Random(2)))
            assert found.lost == (), steps
            looks = max(looks, meddled.calls)
        done += 1
    assert looks > 5


def lose(root: Path, topic: str) -> None:
    (root / "topics" / f"{topic}.json").unlink()


def test_records_that_were_flushed_and_are_gone_with_the_description_are_missed_too(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    lose(tmp_path, "t")
    (tmp_path / "t-0" / LOG).unlink()
    assert unowned(tmp_path).lost == (tmp_path / "t-0",)


def test_a_topic_recreated_over_records_that_lost_theirs_does_not_hush_it_up(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
    lose(tmp_path, "t")
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        (report,) = [each for each in verify_store(store) if each.damage]
        assert (report.topic, report.partition) == ("t", None)
        assert "t.json is not of all that is there: t-0." in report.damage[0][2]
        assert "remove" in report.damage[0][2]
    with pytest.raises(logstore.PylogError, match="is not of all that is there"):
        logstore.recover(tmp_path)
    (left,) = unowned(tmp_path).lost
    assert (left / LOG).stat().st_size > 0


def test_recovery_removes_what_killed_creations_left_and_nothing_that_holds_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        for number in range(1, 12):
            create(tmp_path / f"t-{number}", topic_id=store.topic("t").topic_id, env=store.env)
        (tmp_path / "other-0").mkdir()  # killed before it could say whose it is
        store.recover()  # not alone with the store
        assert (tmp_path / "t-11").exists()
    for number, name in enumerate((LOG, f"{LOG}.deleted", f"{0:020}.cleaned", "notes"), 7):
        (tmp_path / f"t-{number}" / name).write_bytes(b"1")
    for name in (LOG, f"{0:020}.index"):
        (tmp_path / "t-1" / name).write_bytes(b"")
    with pytest.raises(logstore.PylogError, match=r"t\.json is not of all that is there: t-7 holds records"):
        logstore.recover(tmp_path)
    assert (tmp_path / "t-11").exists(), "it is of a topic that has records which nothing describes"
    (tmp_path / "t-7" / LOG).write_bytes(b"")
    logstore.recover(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*-*") if path.is_dir()) == [
        "t-0",
        "t-10",
        "t-8",
        "t-9",
    ]
    assert "directories=1 removed, from other-0 to other-0" in caplog.text
    assert "directories=8 removed, from t-1 to t-11" in caplog.text
    assert unowned(tmp_path, young_too=True) == Unowned(others=tuple(tmp_path / f"t-{n}" for n in (8, 9, 10)))
    with logstore.open(tmp_path) as store:
        assert store.read("t", partition=0).read_all().num_rows == 1
