"""A plain import loads only these modules, by their names, in a fresh interpreter."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import logstore
from datasource.jobs import tiering
from tests.support.commands import loaded_by_command
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
HEAVY = {"numba", "numpy", "pandas", "pyarrow", "pyspark"}
SPARKLESS = {"pyspark", "py4j", "pandas", "matplotlib"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "banned"),
    [
        ("import logstore", HEAVY),
        ("import logstore.records.batch, logstore.log.log, logstore.log.segments.segment", HEAVY),
        ("import logstore.cli", HEAVY),
        ("import logstore.records.arrow, logstore.records.partitioner", SPARKLESS),
        ("import datasource.connector.options, datasource.connector.planning", {"numba", "matplotlib"}),
        # Modules that Spark's processes load anew for every micro-batch, to plan it and to commit it.
        ("import datasource.connector.source, datasource.topics.transactions.batches", HEAVY - {"pyspark"}),
        ("import datasource.jobs.here, datasource.jobs.compaction, datasource.jobs.retention", HEAVY),
        ("import datasource.jobs.tiering", SPARKLESS | {"numba"}),
        ("import datasource.demo.cli", {"numba", "matplotlib"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_import_stays_cheap(statement, banned):
    assert not loaded_by(statement) & banned


def test_what_looks_up_the_source_loads_neither_its_readers_nor_its_writers():
    """A process of its own does this at each session's first use of the format."""
    code = "import sys, pyspark_pylog; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    connector = "datasource.connector"
    assert not {f"{connector}.reader", f"{connector}.writer", "logstore.store.store"} & set(done.stdout.split())


KEPT_OUT = {"numba", "pandas", "pyspark"}


@only_long("an interpreter for each command")
def test_light_commands_load_neither_pandas_nor_spark_nor_the_kernels(tmp_path):
    """Each takes as long as all else that a command does, or longer."""
    for text, command in [
        ("", "topics create t --partitions 3"),
        ("a:1\n:2\nb:3\n", "produce t --key-separator :"),
        ("4\n", "produce t --partition 1"),
        ("", "consume t --from-beginning"),
        ("", "topics describe t"),
        ("", "delete-records t --partition 0 --offset 0"),
        ("", "transactions list"),
        ("", "retention"),
        ("", "verify"),
    ]:
        assert not loaded_by_command(text, *command.split(), "--path", str(tmp_path / "data")) & KEPT_OUT, command


TASK = """
import sys
from datasource.connector.options import read_options
from datasource.connector.reader import StreamReader
from datasource.connector.source import PylogDataSource

options = {"path": sys.argv[1], "subscribe": "t", "startingOffsets": "earliest", "includeTiered": "true"}
reader = StreamReader(read_options(options, streaming=True), PylogDataSource(options).schema())
reader.prepareForTriggerAvailableNow()
start = reader.initialOffset()
(task,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
assert sum(batch.num_rows for batch in reader.read(task)) == 3
print(*sys.modules)
"""


def test_a_task_that_reads_from_a_table_loads_neither_pandas_nor_the_kernels(tmp_path):
    """They take a new worker longer than all else up to the first row of a stream."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=1)
        store.append("t", {"value": ["a", "b", "c"]})
    tiering.rows(None, path=str(tmp_path))
    import_module("logstore.records.kernels")  # a driver that finds none compiled compiles them, as in a fresh clone
    done = subprocess.run(
        [sys.executable, "-c", TASK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"pandas", "numba"} & set(done.stdout.split())


def test_a_broker_does_not_load_hypothesis():
    """kio imports it where it is installed, which is a third of the work of a broker's start."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['broker', 'parent=1', 'no.such.setting=1']\n"
        "try: runpy.run_module('replication.broker.process', run_name='__main__')\n"
        "except SystemExit: print('kio.static.primitive' in sys.modules, sys.modules.get('hypothesis'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "True None\n", done.stderr
