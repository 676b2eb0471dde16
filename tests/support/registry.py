"""A real schema registry beside the tests: Apicurio, which speaks the REST API of Confluent's registry."""

import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.support.kafka4 import FILES, STARTS, fetched, free_ports

READY_WITHIN_S, ENDED_WITHIN_S = 120, 30


class Registry:
    """A registry on loopback that keeps what it is told in memory. A context manager; `url` is that of the REST API."""

    def __init__(self, directory):
        self._log = Path(directory) / "registry.log"
        self._process = None
        self.url = ""

    def __enter__(self):
        home = fetched("registry-2.6.13", FILES / "registry.pom.xml", "unpack-dependencies")
        [program] = home.glob("*-runner.jar")
        for tries_left in reversed(range(STARTS)):
            try:
                self._start(program)
            except AssertionError:  # another process may have taken the port
                self.__exit__()
                if not tries_left:
                    raise
            except BaseException:
                self.__exit__()
                raise
            else:
                break
        return self

    def _start(self, program):
        (port,) = free_ports(1)
        command = [
            *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", str(program)),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._log.parent)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._wait()

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait(ENDED_WITHIN_S)

    def _wait(self):
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                return
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            time.sleep(0.2)
