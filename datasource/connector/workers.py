"""Spark's Python workers: they start in a third of the time.

Spark puts the archive `python/lib/pyspark.zip` before all else on the path of its Python workers. An archive keeps no
compiled code, so each fresh worker compiles PySpark's sources: a second of CPU time, of the 10 s in which it must
connect to Spark. Without the archive the workers import the package that pip installed and compiled: the same sources.
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

HOME = "SPARK_HOME"
_keep: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def compiled_workers(master: str, python: str) -> Iterator[None]:
    """Let a JVM that the block starts give its workers the installed PySpark, if they run here, and run this Python.

    Nothing changes for a JVM that runs already, a SPARK_HOME of the user, and a PySpark that is no installed package.
    YARN ships the archive to its machines.
    """
    package = Path(pyspark.__file__).parent
    local = master.startswith("local")
    if SparkContext._gateway or not local or not applies(package, python, os.environ):
        yield
        return
    os.environ[HOME] = str(without_archive(package))
    try:
        yield
    finally:
        del os.environ[HOME]


def applies(package: Path, python: str, environment: Mapping[str, str]) -> bool:
    """Whether workers that run `python` find this package by themselves, and would find the archive first."""
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return (
        HOME not in environment
        and "PYSPARK_GATEWAY_PORT" not in environment  # of spark-submit: the JVM runs already
        and shutil.which(python) == sys.executable
        and str(package.parent) in (*installed, *environment.get("PYTHONPATH", "").split(os.pathsep))
        and (package / "jars").is_dir()
        and (package / "python" / "lib" / "pyspark.zip").is_file()
    )


def without_archive(package: Path) -> Path:
    """Return a directory with all of this Spark but its `python`; it is removed when this process ends."""
    home = tempfile.TemporaryDirectory(prefix="pylog-spark-")
    _keep.append(home)
    for each in package.iterdir():
        if each.name != "python":
            (Path(home.name) / each.name).symlink_to(each)
    return Path(home.name)
