"""Batch writes with tasks that Spark speculates on: a master, and two workers that are two hosts to Spark.

    python -m tests.spark.speculate DIRECTORY OPTIONS [OPTIONS ...]

One write for each OPTIONS (JSON). The first attempt of task 0 writes its rows and waits for its end. DIRECTORY/began
gets a file `WRITE-PARTITION-ATTEMPT` for each attempt that began.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests import conftest
from tests.spark.kills.query import QUICK

ROWS = 4
HOSTS = ("127.0.0.2", "127.0.0.3")  # Spark speculates on another host than the one that is slow
SETTINGS = {
    **QUICK,
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.quantile": 0.5,
    "spark.speculation.efficiency.enabled": False,
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}


@contextmanager
def daemon(directory: Path, kind: str, *words: str) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *words]
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": conftest.JVM}
    with (directory / "daemons.txt").open("ab") as output:
        started = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        started.terminate()
        started.wait()


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as daemons:
        daemons.enter_context(daemon(directory, "master.Master", "--host", "127.0.0.1", "--port", str(port)))
        for host in HOSTS:
            words = ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(directory / host), master]
            daemons.enter_context(daemon(directory, "worker.Worker", *words))
        yield master


def main(place: str, *options: str) -> None:
    import datasource
    from datasource import spark_session

    directory = Path(place)
    (directory / "began").mkdir()
    with spark_cluster(directory) as master:
        spark = spark_session(master=master, app_name="speculate", **SETTINGS)
        datasource.register(spark)
        for number, each in enumerate(options):

            def slow(batches, number=number):
                from pyspark import TaskContext

                task = TaskContext.get()
                (directory / "began" / f"{number}-{task.partitionId()}-{task.attemptNumber()}").touch()
                yield from batches
                while task.partitionId() == 0 and task.attemptNumber() == 0:
                    time.sleep(0.1)

            frame = spark.range(0, ROWS, 1, 2).selectExpr("string(id) value").mapInArrow(slow, "value string")
            frame.write.format("pylog").options(**json.loads(each)).mode("append").save()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
