"""Files whose directories show no time passing: what others do must be seen all the same."""

from pathlib import Path

from logstore.env import OsFiles


class Coarse(OsFiles):
    """All changes of a directory have one time stamp, as those that follow each other in a clock's tick.

    A listing thus never counts: only a directory that was settled is known.
    """

    TICK_NS = 1_800_000_000_000_000_000

    def list(self, path):
        found = super().list(path)
        return found._replace(settled=found.stat.mtime_ns != self.TICK_NS)


def _ticking(name):
    def call(self, path, *args):
        before = self.stat(Path(path).parent)
        getattr(OsFiles, name)(self, path, *args)
        if self.stat(Path(path).parent) != before:
            self.set_time(Path(path).parent, self.TICK_NS)

    return call


for _name in ("create", "unlink", "rename", "link", "mkdir"):
    setattr(Coarse, _name, _ticking(_name))
