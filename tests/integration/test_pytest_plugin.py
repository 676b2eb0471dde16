"""The fixtures that pylog gives to other people's tests, in a test run of their own."""

import re
from pathlib import Path

import pytest

from tests.support.repeats import only_long, times

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLE, STREAM, FAULTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
INI = re.search(r"```ini\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester, *arguments):
    return pytester.runpytest_subprocess("-p", "pytest_pylog", *arguments)


@only_long("a test run of its own")
def test_a_store_is_empty_open_and_of_one_test(pytester):
    pytester.makepyfile(
        """
        import pyarrow as pa, pytest
        from logstore import PylogError

        held = []

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(pylog_store, n):
            assert pylog_store.topics() == []
            pylog_store.create_topic("orders")
            pylog_store.append("orders", pa.table({"value": ["a"]}))
            held.append(pylog_store)

        def test_it_is_closed_afterwards():
            with pytest.raises(PylogError):
                held[0].create_topic("more")
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_the_example_runs_with_brokers_that_serve_the_session(pytester):
    pytester.makeini("[pytest]\npylog_brokers = 2\npylog_broker_settings =\n    num.partitions = 1\n")
    pytester.makepyfile(
        EXAMPLE
        + """

def test_the_brokers_are_those_of_the_test_before(pylog_cluster):
    assert pylog_cluster.live == [1, 2]
    with KafkaClient(pylog_cluster.bootstrap) as client:
        assert list(client.topics()) == ["clicks"]
"""
    )
    run(pytester).assert_outcomes(passed=3)


@only_long("a test run of its own, with brokers")
def test_the_example_of_faults_runs_and_the_next_test_has_a_whole_cluster(pytester):
    pytester.makeini(INI)
    pytester.makepyfile(
        "from replication.client.kafka_client import KafkaClient\n\n"
        + FAULTS
        + """

def test_one_that_leaves_its_faults(pylog_cluster):
    pylog_cluster.partition(1)
    pylog_cluster.kill(2)
    pylog_cluster.pause(3)

def test_the_next_one(pylog_cluster):
    assert pylog_cluster.live == [1, 2, 3]
    with KafkaClient(pylog_cluster.bootstrap) as client:
        client.append("faults", [{"value": "page 5"}])
"""
    )
    run(pytester).assert_outcomes(passed=3)


def test_the_example_of_the_readme_runs(pytester):
    pytester.makepyfile(re.search(r"## In your own tests.*?```python\n(.*?)```", README, re.DOTALL)[1])
    run(pytester).assert_outcomes(passed=1)


@only_long("test runs of its own")
def test_a_wrong_setting_is_told_in_one_line(pytester):
    pytester.makepyfile("def test_it(pylog_cluster): pass")
    for setting, line in (
        ("pylog_brokers = two", "*pylog_brokers = two: it must be a number of brokers from 1 on"),
        ("pylog_broker_settings = a", "*pylog_broker_settings: 'a' is not of the form KEY=VALUE"),
    )[: times(1, 2)]:
        pytester.makeini(f"[pytest]\n{setting}\n")
        found = run(pytester)
        found.assert_outcomes(errors=1)
        found.stdout.fnmatch_lines([line])


def test_nothing_of_pylog_is_loaded_before_a_test_asks_for_it(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert not {"logstore", "replication", "pyarrow", "numba", "pyspark"} & set(sys.modules)
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_what_is_missing_is_named(pytester, monkeypatch):
    pytester.makepyfile(sitecustomize="import sys\nsys.modules['kio'] = None\n")
    pytester.makepyfile("def test_it(pylog_cluster): pass")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    found = run(pytester)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(['*pylog_cluster needs kio*pip install "pyspark-pylog?cluster?"*'])
