"""docs/cluster-operations.md: its bash runs from top to bottom on brokers, and shows what the page says."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replication.broker import acl_nodes, quota_nodes
from replication.cli.features import upgrade
from replication.coordination import nodes, producer_ids
from replication.model.cluster import TopicPartition
from replication.model.features import SUPPORTED
from tests.support.page_shell import run_page
from tests.support.repeats import only_long
from tests.unit.logstore.store.test_full_disk import small_file_system

PAGE = (Path(__file__).parents[2] / "docs" / "cluster-operations.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", "## Begin\n" + PAGE, re.DOTALL | re.MULTILINE))
CHEAP = ["Begin", "Add a broker", "Drain a broker", "Replace a disk", "Upgrade without a stop"]
STORE = "What the coordination store holds"
DEAR = ["Begin", "Lose the controller", "Hold an unclean election", "Make room on a full disk"]
# A full disk is noticed when somebody writes.
FILL = """
for size in 65536 1; do dd if=/dev/zero bs=$size >> disk-3/filler 2> dd.err || true; done
pylog perf produce --topic orders --num-records 600 --output json > produced.json
"""

NODES = re.findall(r"^\| `(/.*?)` \|", SECTIONS[STORE], re.MULTILINE)


def test_the_level_that_an_operator_is_told_to_raise_to_is_the_highest():
    told = PAGE + upgrade.help
    levels = {int(level) for level in re.findall(r"features upgrade --level (\d+)", told)}
    assert levels == {SUPPORTED.last}


def blocks(language, title):
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[title], re.DOTALL | re.MULTILINE))


def words(text):
    """The words of each line. A number of four digits is one of bytes, or a port."""
    return [re.sub(r"\d{4,}", "N", line).replace(" yes ", " no ").split() for line in text.splitlines()]


def check(titles, directory, environment):
    mark = "=== "
    before = {"Make room on a full disk": FILL}
    script = "\n".join(f"{before.get(t, '')}echo '{mark}{t}'\n{blocks('bash', t)}" for t in titles)
    script = script.replace("coordination=", "zookeeper.session.timeout.ms=3000\ncoordination=")  # 6 s on the page
    shown = run_page(script, directory, environment, 120)
    parts = dict(part.split("\n", 1) for part in shown.split(mark)[1:])
    assert list(parts) == titles
    assert_all_are_named(directory / "cluster.db")
    for title, part in parts.items():
        found = words(part)
        assert [line for line in words(blocks("text", title)) if line not in found] == [], part


def test_a_section_is_run_in_one_of_the_tests():
    assert sorted({*CHEAP, *DEAR, STORE}) == sorted(SECTIONS)
    assert all(blocks("text", title) for title in {*CHEAP, *DEAR} - {"Begin"})


@pytest.mark.slow
@only_long("a cluster of its own")
def test_what_an_operator_plans_runs_and_shows_what_the_page_says(tmp_path, variables, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(CHEAP, tmp_path, variables)


def assert_all_are_named(store):
    """Each node of a real store is in the page's table, or is a directory of such."""
    patterns = [re.compile(re.sub(r"[A-Z]+", "[^/]+", path)) for path in NODES]
    with closing(sqlite3.connect(store)) as db:
        paths = [path for (path,) in db.execute("SELECT path FROM node WHERE path != '/'")]
    assert len(paths) > 30
    named = {path for path in paths if any(each.fullmatch(path) for each in patterns)}
    directories = {"/".join(path.split("/")[:end]) for path in [*named, *NODES] for end in range(2, 10)}
    assert set(paths) - named - directories == set()


def test_the_table_of_the_store_names_what_the_code_names():
    own = {each for name, each in vars(nodes).items() if name.isupper() and isinstance(each, str) and "/" in each}
    own -= {nodes.CONFIG_CHANGE_PREFIX, nodes.ISR_CHANGE_PREFIX}
    paths = {*own, *nodes.PERSISTENT_PATHS, *nodes.PARTITION_COUNTS.values(), producer_ids.NODE}
    state = nodes.state_path(TopicPartition("TOPIC", 0)).replace("0", "N")
    of_acls = {f"{acl_nodes.LITERAL}/TYPE", f"{acl_nodes.PREFIXED}/TYPE", *acl_nodes.CHANGES}
    of_quotas = {f"{quota_nodes.CONFIGS}/{quota_nodes.USERS}", f"{quota_nodes.CONFIGS}/{quota_nodes.ADDRESSES}"}
    of_quotas.add(f"{quota_nodes.CONFIGS}/{quota_nodes.USERS}/USER/{quota_nodes.CLIENTS}")
    assert {re.sub(r"/[A-Z]+$", "", path) for path in NODES} == {*paths, state, *of_acls, *of_quotas}


@pytest.mark.slow
@only_long("sessions that end, a file system of its own")
def test_what_happens_to_an_operator_runs_and_shows_what_the_page_says(tmp_path, variables, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with small_file_system(tmp_path / "disk-3", "48m"):
        check(DEAR, tmp_path, variables)
