"""Points at which a job of Spark kills itself, all of it and at once: at a line of the journal of transactions.

A driver that has PYLOG_KILLS=DIRECTORY in its environment arms a point there. Every Python that Spark starts for it
looks, whenever it writes to a journal, whether this line is the one. Nothing of the product knows of it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "PYLOG_KILLS"
# The line is not there; a part of it is; it is there.
MOMENTS = ("before", "within", "after")
EVENTS = ("open", "prepared", "decide", "durable", "marked")
JOURNAL = tuple(f"{moment} {event}" for event, moment in itertools.product(EVENTS, MOMENTS))


def arm(root: Path, point: str, number: int = 0) -> None:
    """Let this process, a leader of its group, and all of its Pythons die at this point of a journal, as it comes up
    for the so-and-so-many-th time (from 0).
    """
    moment, event = point.split()
    armed = {"group": os.getpgid(0), "moment": moment, "event": event, "number": number}
    (root / "seen").write_bytes(b"")
    (root / "armed.new").write_text(json.dumps(armed))
    (root / "armed.new").rename(root / "armed")


def disarm(root: Path) -> None:
    """Forget a point that was not reached."""
    (root / "armed").unlink(missing_ok=True)


def die(*groups: int) -> None:
    """Kill these groups of processes, and that of the caller."""
    for group in {*groups} - {os.getpgid(0)}:
        os.killpg(group, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def watch(root: Path) -> None:
    """Wrap this process's writes: one to a journal may be the last."""
    write = os.pwrite

    def watched(fd: int, data: bytes, position: int) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().match("transactions/journal"):
            _look(root, data, lambda part: write(fd, part, position))
        return write(fd, data, position)

    os.pwrite = watched


def _look(root: Path, line: bytes, write: Callable[[bytes], int]) -> None:
    if not (root / "armed").exists():
        return
    armed = json.loads((root / "armed").read_text())
    if f'["{armed["event"]}"'.encode() not in line:
        return
    with (root / "seen").open("ab") as seen:
        seen.write(b".")
        if seen.tell() <= armed["number"]:
            return
    (root / "armed").unlink()
    if armed["moment"] != "before":
        write(line if armed["moment"] == "after" else line[: len(line) // 2])
    die(armed["group"])
