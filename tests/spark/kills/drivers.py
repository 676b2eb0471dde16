"""Processes with a Spark session, one of which is always ready for what comes next; and what is below a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark

from tests import conftest

ROOT = Path(__file__).parents[3]
SPARK_HOME = str(Path(pyspark.__file__).parent)  # the classes are known by jars that stay
ENDS_S = 120.0
# Spark gives a query up where the machine is so busy that a new Python needs 10 s to say hello.
SLOW = "Python worker failed to connect back"
SLOW_MAX = 5


class Drivers:
    """See the module. They share a directory, and their output there.

    The JVM of the first one writes down its classes if it ends in good order (`wait_for_classes`); the next ones start
    with half the work. On a cluster there is only one, which nobody kills: a second would take its executors.
    """

    def __init__(
        self, root: Path, master: str, *, program: str = "query", environment: Mapping[str, str] | None = None
    ) -> None:
        self._root, self._master, self._count = root, master, 0
        self._program, self._environment = f"tests.spark.kills.{program}", dict(environment or {})
        self._are_many = master.startswith("local[")
        self._spare: subprocess.Popen[bytes] | None = None
        self._options = os.environ.get("SPARK_SUBMIT_OPTS", conftest.JVM)
        self._classes = root / "classes.jsa"

    @property
    def has_classes(self) -> bool:
        return self._classes.exists() or "SharedArchiveFile" in self._options

    def take(self, job: str, **options: object) -> subprocess.Popen[bytes]:
        """The one that is ready, at this job from now on."""
        taken, self._spare = self._spare or self._launch(), None
        note = self._root / f"go-{self._count}"
        note.with_suffix(".new").write_text(json.dumps({"job": job, "options": options}))
        note.with_suffix(".new").rename(note)
        if self._are_many and self.has_classes:
            self._spare = self._launch()
        return taken

    def _launch(self) -> subprocess.Popen[bytes]:
        self._count += 1
        options = self._options
        if self._are_many and "SharedArchiveFile" not in options:
            use = "SharedArchiveFile" if self.has_classes else "ArchiveClassesAtExit"
            options += f" -XX:{use}={self._classes} -Xlog:disable"
        paths = [str(ROOT), conftest.PRELOAD, os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "SPARK_SUBMIT_OPTS": options, "SPARK_HOME": SPARK_HOME}
        with (self._root / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", self._program, str(self._root), str(self._count), self._master],
                cwd=ROOT,
                env=os.environ | variables | self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self) -> str:
        """The output since the last call."""
        file = self._root / "output.txt"
        text = file.read_text(errors="replace")
        file.write_text("")
        return text

    def close(self) -> None:
        if self._spare is not None:
            end(self._spare)


def run_until(ends: int, run: Callable[[], int], output: Callable[[], str]) -> str:
    """Run until the exit status is this one, again where the machine was too slow for Spark; return the last output."""
    for _ in range(SLOW_MAX):
        status, text = run(), output()
        if status == ends:
            return text
        if SLOW not in text:
            break
    raise AssertionError(f"exit status {status}, not {ends}:\n{text[-6000:]}")


# --- processes


def wait_for(pids: list[int]) -> None:
    """Wait until none of these is there: a JVM ends after its driver, when it has written down its classes."""
    last = time.monotonic() + ENDS_S
    while any(command(pid) for pid in pids) and time.monotonic() < last:
        time.sleep(0.05)


def wait_with_jvm(process: subprocess.Popen[bytes], within_s: float) -> int:
    """Wait until this driver is gone, and its JVM, which may hold a lock; return the exit status."""
    last, jvms = time.monotonic() + within_s, set[int]()
    while (status := process.poll()) is None:
        if time.monotonic() > last:
            raise TimeoutError(f"the driver did not end within {within_s:.0f} s")
        jvms |= {pid for pid in descendants(process.pid) if "SparkSubmit" in command(pid)}
        time.sleep(0.1)
    wait_for(list(jvms))
    return status


def descendants(pid: int) -> list[int]:
    """This process and all below it, as they are now."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                children[parent_of(int(entry.name))].append(int(entry.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def workers(pid: int) -> list[int]:
    """The Python workers that run tasks: forks of the daemon, with its command line."""
    daemons = [p for p in descendants(pid) if "daemon pyspark.worker" in command(p)]
    return [p for p in daemons if parent_of(p) in daemons]


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_driver(process: subprocess.Popen[bytes], *, everything: bool) -> list[int]:
    """Kill the driver; return the processes that are left of it."""
    found = descendants(process.pid)
    left = [p for p in found if "daemon pyspark." in command(p)]
    kill(found if everything else [p for p in found if p not in left])
    process.wait()
    return left


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and all below it, if it is there."""
    if process.poll() is None:
        kill_driver(process, everything=True)
