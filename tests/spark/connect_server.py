"""A server of Spark Connect, as Spark's own start script starts it: a process of its own, on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from datasource.session import java_home

ROOT = Path(__file__).parents[2]
STARTS_S = 120.0
READY = re.compile(r"Spark Connect server started at: \S*:(\d+)")
CONF = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Yield the address of a server that works in this directory, with two cores and this Python."""
    log = directory / "server.txt"
    options = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    hidden = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")])),
        "PWD": str(directory),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                Path(pyspark.__file__).parent / "bin" / "spark-submit",
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--master", "local[2]", *options, "spark-internal"),
            ],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield f"sc://127.0.0.1:{_port(process, log)}"
    finally:
        process.terminate()
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + STARTS_S
    while not (found := READY.search(text := log.read_text(errors="replace"))):
        assert process.poll() is None, text[-3000:]
        assert time.monotonic() < deadline, f"no server within {STARTS_S:.0f} s: {text[-3000:]}"
        time.sleep(0.05)
    return int(found[1])
