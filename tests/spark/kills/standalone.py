"""Spark's standalone cluster: a master and workers, processes of their own, whose executors can be killed."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyspark

from datasource.session import java_home
from tests import conftest
from tests.spark.kills.drivers import ROOT, command, descendants, kill

SPARK_HOME = Path(pyspark.__file__).parent
CLASSES = "org.apache.spark.deploy"
# The master gives an application up that loses many executors one after the other: here that is what is tried.
OPTIONS = "-Dspark.master.rest.enabled=false -Dspark.deploy.maxExecutorRetries=-1"
LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
STARTS_S = 120.0


class Standalone:
    """A master and two workers with a core each, all on the loopback interface, on free ports.

    Workers and executors share no environment with the driver but PYTHONPATH, and keep their files below `root`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self.master, found = self._start("master.Master", r"Starting Spark master at (spark://\S+)")
            self.url = found[1]
            self._until(lambda: "elected leader" in self._log("master.Master-1"), "the master leads")
            self.workers = [self._start_worker() for _ in range(2)]
        except BaseException:
            self.close()
            raise

    def _start_worker(self) -> subprocess.Popen[bytes]:
        where = self._root / f"work-{self._count}"
        options = ["--cores", "1", "--memory", "512m", "--work-dir", str(where), self.url]
        return self._start("worker.Worker", "Successfully registered with master", *options)[0]

    def _start(self, name: str, ready: str, *options: str) -> tuple[subprocess.Popen[bytes], re.Match[str]]:
        """Start a daemon; return it, and the line that says it is ready."""
        self._count += 1
        log = f"{name}-{self._count}"
        paths = [str(ROOT), conftest.PRELOAD, os.environ.get("PYTHONPATH", "")]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", str(self._root)),
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": f"{conftest.JVM} {OPTIONS}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        with (self._root / log).open("wb") as output:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", f"{CLASSES}.{name}", *LOOPBACK, *options],
                cwd=self._root,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        found: list[re.Match[str] | None] = []

        def is_ready() -> bool:
            assert process.poll() is None, self._log(log)[-3000:]
            found[:] = [re.search(ready, self._log(log))]
            return found[0] is not None

        self._until(is_ready, f"{name} runs")
        assert found[0] is not None
        return process, found[0]

    def _log(self, name: str) -> str:
        return (self._root / name).read_text(errors="replace")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STARTS_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {STARTS_S:.0f} s: {what}"
            time.sleep(0.05)

    def executors(self) -> list[int]:
        """The JVMs of executors that run now."""
        below = [pid for worker in self.workers for pid in descendants(worker.pid)]
        return [pid for pid in below if "CoarseGrainedExecutorBackend" in command(pid)]

    def kill_executor(self, dice: random.Random) -> None:
        """Kill one, at random without or with its Python workers, which otherwise live on for a moment."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = self.executors()
            return bool(found)

        self._until(is_there, "an executor runs")
        victim = dice.choice(found)
        kill(descendants(victim) if dice.random() < 0.5 else [victim])

    def kill_worker(self, dice: random.Random) -> None:
        """Kill a worker, at random without or with its executors, which otherwise notice; and start another."""
        victim = self.workers.pop(dice.randrange(len(self.workers)))
        kill(descendants(victim.pid) if dice.random() < 0.5 else [victim.pid])
        victim.wait()
        self.workers.append(self._start_worker())

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                kill(descendants(process.pid))
            process.wait()
