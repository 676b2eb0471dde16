"""Files of the real disk, where a test has something happen in the middle of a change."""

import threading

from logstore.env import OsFiles


class Interrupted(OsFiles):
    """Files that have something happen, once, in the middle of a change."""

    def __init__(self, after):
        super().__init__()
        self._is_due, self.act = after, None

    def _maybe(self, kind, path):
        act = self.act
        if act is not None and self._is_due(kind, str(path)):
            self.act = None
            other = threading.Thread(target=act)  # another one than who holds the lock
            other.start()
            other.join()

    def fsync(self, path):
        super().fsync(path)
        self._maybe("fsync", path)

    def write(self, path, position, data):
        self._maybe("write", path)
        super().write(path, position, data)

    def truncate(self, path, size):
        self._maybe("truncate", path)
        super().truncate(path, size)
