"""A run of a declarative pipeline that kills itself: `spark-pipelines run`, in a process that has its session before.

    python -m tests.spark.kills.pipeline DIRECTORY NUMBER MASTER

It waits for the file `go-NUMBER`. Exit status 0: the run was completed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.spark.kills import points
from tests.spark.kills.query import asked


def main(directory: str, number: str, master: str) -> None:
    from pyspark.pipelines import cli
    from pyspark.sql import SparkSession

    root = Path(directory)
    SparkSession.builder.config("spark.api.mode", "connect").config("spark.master", master).getOrCreate()
    job, options = asked(root / f"go-{number}")
    assert job == "run"
    points.disarm(root)
    if point := options["point"]:
        if point in points.JOURNAL:
            points.arm(root, point)
        else:
            sys.stdout = Told(sys.stdout, point)
    sys.argv = ["spark-pipelines", "run", "--spec", options["spec"], *options["more"]]
    cli.main()


class Told:
    """Standard output that ends this process, and all below it, when it says this."""

    def __init__(self, out: Any, last: str) -> None:
        self._out, self._last = out, last

    def write(self, text: str) -> int:
        if self._last in text:
            points.die()
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
