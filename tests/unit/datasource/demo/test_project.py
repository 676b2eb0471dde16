"""`pylog pipelines init`: a project that runs at once. tests/spark/test_pipelines.py runs it."""

import pytest

import logstore
from datasource.demo.project import ORDERS, SPECIAL, write_project
from logstore.errors import InvalidRequestError, StorageError
from tests.support.commands import run_pylog


def test_a_project_has_a_spec_settings_flows_and_a_log(tmp_path):
    shop = tmp_path / "shop"
    ran = run_pylog("pipelines", "init", shop).ok()
    assert ran.lines == [f"{shop} is a pipeline: cd {shop} && spark-pipelines run --properties-file spark.conf"]
    spec = (shop / "spark-pipeline.yml").read_text().splitlines()
    assert spec[:2] == ['name: "shop"', f'storage: "file://{shop}/storage"']
    assert f"databaseName={shop}/catalog;" in (shop / "spark.conf").read_text()
    compile((shop / "transformations" / "orders.py").read_text(), "orders.py", "exec")
    with logstore.open(shop / "data", mode="r") as store:
        rows = store.read("orders").read_all().select(["key", "value"]).to_pylist()
        assert sorted((row["key"].decode(), row["value"].decode()) for row in rows) == sorted(ORDERS)
        assert store.topic("thanks").partitions == store.topic("orders").partitions


def test_a_directory_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "shop").mkdir()
    assert "exists; choose another name" in run_pylog("pipelines", "init", tmp_path / "shop").failed()
    assert list((tmp_path / "shop").iterdir()) == []


def test_a_project_that_could_not_be_finished_is_not_there(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        raise StorageError("no room")

    monkeypatch.setattr(logstore.LogStore, "append", refused)
    with pytest.raises(StorageError, match="no room"):
        write_project(tmp_path / "shop")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_spark_would_take_for_something_else_is_refused(tmp_path):
    for letter in SPECIAL:
        with pytest.raises(InvalidRequestError, match="choose a path without"):
            write_project(tmp_path / f"shop{letter}")
    assert list(tmp_path.iterdir()) == []


def test_packages_that_the_command_of_spark_lacks_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("datasource.demo.pipelines.NEEDS", {"json": "there", "no_such_module": "missing"})
    ran = run_pylog("pipelines", "init", tmp_path / "shop").ok()
    assert ran.err == 'spark-pipelines needs missing: pip install "pyspark[pipelines]"\n'
