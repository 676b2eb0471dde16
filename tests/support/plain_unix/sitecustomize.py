"""This Python as on a Unix that has no more than macOS: no /proc, fewer calls, and an fsync that is not enough.

First on the PYTHONPATH, it runs instead of that of tests/support/preload, and runs that afterwards.
"""

import builtins
import errno
import fcntl
import functools
import io
import mmap
import os
import runpy
from pathlib import Path

FULL_SYNC = 51  # macOS' number
_fcntl, _fsync = fcntl.fcntl, os.fsync


def begin():
    for module, name in (
        (os, "posix_fallocate"),
        (os, "posix_fadvise"),
        (os, "preadv"),
        (os, "memfd_create"),
        (os, "RWF_NOWAIT"),
        (mmap, "MADV_HUGEPAGE"),
    ):
        delattr(module, name)
    for module, name in ((os, "open"), (os, "stat"), (os, "listdir"), (io, "open"), (builtins, "open")):
        setattr(module, name, _without_proc(getattr(module, name)))
    fcntl.F_FULLFSYNC, fcntl.fcntl, os.fsync = FULL_SYNC, _full_sync, _not_enough


def _without_proc(call):
    @functools.wraps(call)
    def refusing(path, *args, **kwargs):
        if not isinstance(path, int) and os.fsdecode(path).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(path, *args, **kwargs)

    return refusing


def _full_sync(fd, command, *args):
    if command != FULL_SYNC:
        return _fcntl(fd, command, *args)
    _fsync(fd)
    return 0


def _not_enough(fd):
    raise OSError(errno.EIO, "this fsync does not reach the disk")


begin()
runpy.run_path(str(Path(__file__).parents[1] / "preload" / "sitecustomize.py"))
