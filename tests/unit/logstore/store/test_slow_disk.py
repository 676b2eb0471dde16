"""A disk that takes long (S24): who waits for it waits alone."""

from __future__ import annotations

import threading
from pathlib import Path

import logstore
from logstore.env import Env, OsFiles
from tests.unit.logstore.store.conftest import rows

WAIT_S = 30


class SlowSync(OsFiles):
    """Files whose logs are not synced before somebody lets them be."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.done = threading.Event(), threading.Event()

    def fsync(self, path):  # type: ignore[no-untyped-def]
        if str(path).endswith("t-0/00000000000000000000.log"):
            self.begun.set()
            assert self.done.wait(WAIT_S)
        super().fsync(path)


def test_s24_while_one_waits_for_the_disk_others_append_and_read(tmp_path: Path) -> None:
    files = SlowSync()
    with logstore.open(tmp_path, env=Env(files=files)) as store:
        store.create_topic("t", partitions=2)
        store.append("t", rows(["a"], partition=[0]))
        waiting = threading.Thread(target=store.flush)
        waiting.start()
        try:
            assert files.begun.wait(WAIT_S)
            with logstore.open(tmp_path) as other:
                for each in (store, other):
                    each.append("t", rows(["b", "c"], partition=[0, 1]))
                other.flush()  # of its own, and through another disk queue
                assert other.read("t", partition=0).read_all().num_rows == 3
            assert store.read("t", partition=1).read_all().num_rows == 2
            assert waiting.is_alive()
        finally:
            files.done.set()
            waiting.join(WAIT_S)
