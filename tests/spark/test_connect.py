"""With --long: Spark Connect, by a client that has no Java, a server in a process of its own, and brokers."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark import over_connect
from tests.spark.test_mistakes import check, made_in
from tests.support.repeats import only_long

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    only_long("a JVM"),
    pytest.mark.skipif(
        find_spec("grpc") is None, reason='pip install -e ".[test]" brings the packages of Spark Connect'
    ),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(connect_server, cluster, tmp_path_factory):
    """The facts that the client found."""
    (address, where), bootstrap = connect_server, cluster.running.bootstrap
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", over_connect.__name__, address, bootstrap, *made_in("connect")],
        cwd=tmp_path_factory.mktemp("client"),
        env=os.environ | {"PYTHONPATH": paths, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    cluster.administer("delete_topics", list(over_connect.TOPICS), operation_timeout=20)
    return json.loads(done.stdout.splitlines()[-1]) | {"server": str(where), "stderr": done.stderr}


@pytest.mark.soak
def test_each_mistake_is_answered_by_one_line(found):
    assert found["kind"].startswith("pyspark.sql.connect.")
    check(found["path"], found["mistakes"], found["stderr"], "connect")


def test_relative_paths_are_refused_with_the_absolute_one(found):
    assert list(found["relative"]) == ["read", "write", "stream", "stream write", "count"]
    for text in found["relative"].values():
        assert "InvalidConfigError: option path='log': must be absolute over Spark Connect" in text
        assert f"'{found['server']}/log'" in text
        assert "\tat org.apache" not in text


def test_views_are_read_and_written(found):
    assert found["views"] == [["cut", "small"], 3, 6]
    assert found["count"] == 20


def test_topics_are_columns_and_misfits_are_counted(found):
    refused = found["typed"].pop("refused")
    assert "MisfitError: paid-0 at offset 1: value: not JSON" in refused
    assert found["typed"] == {"misfits": 1, "letters": True, "rows": [[1]], "view": [[2, 0]]}


def test_all_jobs_run_and_show_their_progress(found):
    statuses = {name: job["statuses"] for name, job in found["jobs"].items()}
    idle = ["nothing to do"]
    assert statuses == {"retention": idle, "compaction": idle, "tiering": ["tiered"], "verify": ["sound"]}
    for job in found["jobs"].values():
        (first, _), (done, total) = job["seen"][0], job["seen"][-1]
        assert (first, done) == (0, total)


@pytest.mark.parametrize(("mode", "gone"), [("upsert", {}), ("replace", {"gone": None})])
def test_each_batch_of_a_mode_is_written_once(found, mode, gone):
    """The second run repeats the batch: its records do not come again."""
    wanted = {"0": 7, "1": 7, "2": 6}
    states = found[mode]
    assert states.pop("records") == len(wanted | gone)
    assert {key: value and json.loads(value)["count"] for key, value in states.items()} == wanted | gone


def test_a_query_whose_checkpoint_cannot_be_read_needs_a_name(found):
    wanted = r"checkpoint 's3://bucket/checkpoint' is in no local .*: set option txnId to a .*"
    assert re.fullmatch(wanted, found["nameless"])


def test_brokers_are_read_and_written_and_each_batch_is_there_once(found):
    brokers, (source, copied, written, counted) = found["brokers"], over_connect.TOPICS
    assert {topic: brokers[topic] for topic in (source, copied, written)} == dict.fromkeys(
        (source, copied, written), 20
    )
    assert brokers[counted] in range(5, 11)  # each user in one of two batches, or in both
    for topic in (source, copied, written):
        assert brokers[f"values of {topic}"] == list(range(20))
    assert brokers["states"] == {str(user): 4 for user in range(5)}
