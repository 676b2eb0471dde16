"""Recovery reads what lies above the recovery point, not the log."""

from logstore.env import Env
from tests.support.disk import Disk
from tests.support.partition import appended, batch, contents, make, reopen


class Counting(Disk):
    """Counts the bytes that are read from logs."""

    read_bytes = 0

    def read_into(self, path, position, space):
        count = super().read_into(path, position, space)
        self.read_bytes += count
        return count


def test_only_what_was_not_flushed_is_read(root, env):
    disk = Counting()
    disk.mkdir("/store")
    env = Env(env.clock, disk)
    log = make(root, env, index_interval_bytes=4096)
    for _ in range(300):
        appended(log, batch(b"x" * 1000))
    flushed = log.flush()
    for _ in range(3):
        appended(log, batch(b"x" * 1000))

    for recovery_point, expected_bytes in ((flushed, 10_000), (303, 10_000), (0, 300_000)):
        disk.read_bytes = 0
        log = reopen(log.directory, env, recovery_point=recovery_point, index_interval_bytes=4096)
        assert log.recover().rebuilt == ()
        assert (disk.read_bytes < expected_bytes) == (recovery_point > 0)
        assert len(contents(log)) == 303
