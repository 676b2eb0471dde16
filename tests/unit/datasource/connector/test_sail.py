"""Names and lines for Sail; tests/spark/test_sail.py has a server."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from datasource.connector import sail
from logstore.env import SYSTEM
from logstore.store.transactions import processes


def test_no_two_tasks_of_a_run_have_one_number_and_each_run_has_the_same_ones():
    here = processes.this(SYSTEM)
    with ThreadPoolExecutor(8) as pool:
        for run in ("one", "another"):
            found = list(pool.map(lambda _, run=run: sail.task_number(run, here), range(200)))
            assert sorted(found) == [(number, 0) for number in range(200)]


def test_processes_of_one_run_have_different_numbers():
    (_, here), (_, elsewhere) = (sail.task_number("r", who) for who in (processes.this(SYSTEM), "host 1 1"))
    assert here == 0 < elsewhere


def test_the_runs_of_a_long_life_take_no_memory():
    first = sail.task_number("first", "host 1 1")
    for number in range(sail.RUNS_MAX):
        sail.task_number(f"later {number}", "host 1 1")
    assert sail.task_number("first", "host 1 1") == first


def test_a_refused_version_is_answered_by_the_remedy():
    text = "invalid argument: unsupported PySpark version: 4.3.0"
    assert sail.version_hint(text).startswith("this Sail knows no PySpark 4.3.0: pip install 'pyspark-pylog[sail]'")
    assert sail.version_hint("another error") == ""


def test_this_process_is_alive_and_a_driver():
    assert processes.is_alive(SYSTEM, processes.this(SYSTEM)) is True


@pytest.mark.parametrize(("last", "tasks"), [("filter", 1), ("sql", 1), ("repartition", 3), ("project", 3)])
def test_a_write_is_one_task_unless_its_last_step_says_how_many(last, tasks):
    pytest.importorskip("grpc", reason="PySpark's client of Spark Connect")
    from pyspark.sql.connect.proto import Relation, WriteOperation

    rows = Relation()
    rows.repartition.num_partitions = 3
    if last != "repartition":
        after = Relation()
        getattr(after, last).SetInParent()
        if last != "sql":
            getattr(after, last).input.CopyFrom(rows)
        rows = after
    write = WriteOperation(source="pylog", input=rows, mode=WriteOperation.SAVE_MODE_APPEND)
    sail.amend(write)
    sail.amend(write)  # as of a plan that is sent again
    found = write.input.project.input if last == "project" else write.input
    assert found.repartition.num_partitions == tasks
    assert not found.repartition.input.HasField("repartition")
