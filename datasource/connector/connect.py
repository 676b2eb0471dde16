"""Sessions of Spark Connect: how one is made, and what a server must have for pylog."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from logstore.errors import InvalidConfigError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "spark.remote"
STACKTRACE = "spark.sql.connect.serverStacktrace.enabled"


def is_connect(spark: object) -> bool:
    """Whether this session is one of Spark Connect, whose process may have no Java."""
    return ".connect." in type(spark).__module__


def remote_of(master: str | None, conf: Mapping[str, object]) -> str:
    """Return the address of the server that is asked for, "" for none. Raises: InvalidConfigError: and a master."""
    remote = str(conf.get(REMOTE, ""))
    if remote and (master or "spark.master" in conf):
        raise InvalidConfigError(f"'master' and {REMOTE!r} are both given: leave one away", option=REMOTE)
    return remote or ("" if master or "spark.master" in conf else os.environ.get("SPARK_REMOTE", ""))


def remote_session(remote: str, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of this server. Raises: StorageError: a package is missing, or is too new for Sail."""
    if missing := [name for name in ("grpc", "grpc_status", "google.rpc") if not _is_there(name)]:
        raise StorageError(f"Spark Connect needs packages ({', '.join(missing)}): pip install 'pyspark[connect]'")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from datasource.connector import sail

    builder = SparkSession.builder.remote(remote).appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        if hint := sail.version_hint(str(error)):
            raise StorageError(hint) from error
        raise


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def prepare(spark: SparkSession) -> None:
    """Make pylog known to the session, without Java's stack in errors; check that the server can import it.

    Raises: StorageError: it cannot.
    """
    from pyspark.errors import PySparkException

    from datasource.connector import sail
    from datasource.connector.source import PylogDataSource, SailDataSource

    other_python = "start the server with PYSPARK_PYTHON=/venv/bin/python"
    if sail.attach(spark):
        other_python = "start the server by a Python that has it"
        spark.dataSource.register(SailDataSource)
    else:
        if STACKTRACE not in spark.conf.getAll:
            spark.conf.set(STACKTRACE, "false")
        spark.dataSource.register(PylogDataSource)
    try:
        _ = spark.read.format("pylog").options(path="/", subscribe="t", columns="offset").load().schema
    except PySparkException as error:
        if found := re.search(r"No module named '([\w.]+)'", str(error)):
            raise StorageError(
                f"the Python of the Spark Connect server has no {found[1]}: install pyspark-pylog for it, on every "
                f"machine that runs its tasks, or {other_python}"
            ) from error
        raise


def warn_of_two_packages() -> None:
    """Warn if pyspark and pyspark-client are both installed: they write one folder, each over the other."""
    found = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            return
    warnings.warn(
        f"pyspark {found['pyspark']} and pyspark-client {found['pyspark-client']} are both installed, in one folder, "
        f"which has files of either: {sys.executable} -m pip uninstall -y pyspark pyspark-client, and then pip install "
        f"'pyspark[connect]=={found['pyspark']}'",
        stacklevel=3,
    )
