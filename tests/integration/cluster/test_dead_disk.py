"""R22: the disk of a broker dies while its process lives on: every call that writes there fails, as the kernel says it.

The calls fail in the process of the broker itself; what the cluster agrees on is on another disk.
"""

import time

import pytest

from tests.integration.cluster.conftest import running
from tests.support.repeats import times

pytestmark = pytest.mark.slow

# Imported by each broker as it starts: a directory that is named in DEAD_DISKS answers EIO from then on.
DYING = """
import errno, os

flags = os.environ["DEAD_DISKS"]

def dying(name):
    real = getattr(os, name)

    def call(file, *rest):
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
        if any(f"/{dead}/" in path for dead in os.listdir(flags)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(file, *rest)

    setattr(os, name, call)

for name in os.environ["DEAD_CALLS"].split(","):
    dying(name)
"""


@pytest.mark.parametrize("calls", ["fsync", "pwrite,ftruncate"][: times(1, 2)])
def test_a_broker_whose_disk_dies_ends_and_others_lead_what_it_led(tmp_path, monkeypatch, calls):
    flags = tmp_path / "dead"
    flags.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DYING)
    monkeypatch.setenv("DEAD_DISKS", str(flags))
    monkeypatch.setenv("DEAD_CALLS", calls)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    settings = {"log.flush.offset.checkpoint.interval.ms": 200}
    with running(2, directory=tmp_path / "cluster", **settings) as cluster:
        topic = cluster.create((2, 1))
        assert cluster.produce(topic, range(10)) == []

        (flags / "broker-2").touch()
        begin = time.monotonic()
        assert cluster.produce(topic, range(10, 20)) == []

        cluster.until(lambda: 2 not in cluster.running.live)
        assert time.monotonic() - begin < 30
        cluster.until(lambda: cluster.states(topic)[0][:2] == (1, [1]))
        assert sorted(set(map(int, cluster.values(topic, count=20)))) == list(range(20))
        assert not (cluster.running.log_dir(2) / ".kafka_cleanshutdown").exists()
