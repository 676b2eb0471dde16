"""Spark's Python workers: how fast they start, and what is said of one that came too late.

Spark puts the archive `python/lib/pyspark.zip` before all else on the path of its Python workers. An archive keeps no
compiled code, so each fresh interpreter compiles PySpark's sources: most of a second of CPU time, and for the one that
plans a stream that is of the 10 s in which it must connect to Spark. Without the archive the workers import the package
that pip installed and compiled: the same sources.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkContext

CAME_TOO_LATE = (
    "the stream's Python worker did not connect to Spark within 10 s, because this machine is busy; run it again with "
    "fewer other processes, or with fewer cores for Spark, as master='local[1]'"
)
HOME = "SPARK_HOME"
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # the second one looks up data sources
_keep: list[tempfile.TemporaryDirectory[str]] = []


def came_too_late(error: BaseException) -> bool:
    """Whether Spark gave up the worker of a stream: the query can be started again, as after a crash."""
    return "Python worker failed to connect back" in str(error)


@contextmanager
def compiled_workers(master: str, conf: Mapping[str, object]) -> Iterator[None]:
    """Let a JVM that the block starts give its workers the installed PySpark, if they run here, and run this Python.

    Nothing changes for a JVM that runs already, for a SPARK_HOME of the user, for a PySpark that is no installed
    package, and where no directory can be made. YARN ships the archive to its machines.
    """
    package = Path(pyspark.__file__).parent
    pythons = [conf.get("spark.pyspark.python"), *map(os.environ.get, PYTHONS)]
    here = master.startswith("local") and all(_is_this(str(name)) for name in pythons if name)
    home = None
    if here and not SparkContext._gateway and applies(package, os.environ):
        home = without_archive(package)
    if home is None:
        yield
        return
    os.environ[HOME] = str(home)
    try:
        yield
    finally:
        os.environ.pop(HOME, None)


def applies(package: Path, environment: Mapping[str, str]) -> bool:
    """Whether workers of this Python find this package by themselves, and would find the archive first."""
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return (
        HOME not in environment
        and "PYSPARK_GATEWAY_PORT" not in environment  # of spark-submit: the JVM runs already
        and str(package.parent) in (*installed, *environment.get("PYTHONPATH", "").split(os.pathsep))
        and (package / "jars").is_dir()
        and (package / "python" / "lib" / "pyspark.zip").is_file()
    )


def without_archive(package: Path) -> Path | None:
    """Return a directory with all of this Spark but its `python`; it is removed when this process ends.

    None: there is no room for it.
    """
    try:
        home = tempfile.TemporaryDirectory(prefix="pylog-spark-", ignore_cleanup_errors=True)
        _keep.append(home)
        for each in package.iterdir():
            if each.name != "python":
                (Path(home.name) / each.name).symlink_to(each)
    except OSError:
        return None
    return Path(home.name)


def _is_this(python: str) -> bool:
    return shutil.which(python) == sys.executable
