"""Every crash point of a new store and its topics: what returned is on disk, directories and all (S23)."""

from pathlib import Path

import pytest

import logstore
from logstore.env import Env
from tests.support.disk import Crash, Disk, StillClock

ROOT = Path("/disk/deep/store")  # none of them is there before


@pytest.mark.parametrize("kind", [Crash.LOST, Crash.TORN])
def test_a_topic_that_was_made_altered_or_deleted_is_so_after_a_power_cut(kind):
    disk, clock = Disk(seed=7), StillClock()
    told: dict[str, tuple[int, int] | None] = {}
    images: list[tuple[Disk, dict[str, tuple[int, int] | None]]] = []
    disk.watch = lambda image: images.append((image, dict(told)))
    with logstore.open(ROOT, env=Env(clock, disk)) as store:
        for name in ("a", "b"):
            store.create_topic(name, partitions=2)
            told[name] = 2, -1
        told.pop("a")
        store.alter_topic("a", partitions=3, config={"retention.ms": 5000})
        told["a"] = 3, 5000
        told.pop("b")
        store.delete_topic("b")
        told["b"] = None
        store.create_topic("c")
        told["c"] = 1, -1
    assert len(images) > 60
    for image, said in images:
        with logstore.open(ROOT, env=Env(StillClock(), image.after_crash(kind))) as store:
            found = {info.name: (info.partitions, info.config.retention_ms) for info in store.topics()}
            for name, wanted in said.items():
                assert found.get(name) == wanted, image.calls
                for partition in range(wanted[0] if wanted else 0):
                    assert store.log(name, partition).log_end_offset == 0
