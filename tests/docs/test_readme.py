"""The examples of README.md run in an empty directory, in their order, as somebody types them in.

Those of its Python, and of docs/spark.md: tests/spark/test_examples.py.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.cli import cli
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

# The two commands of the first section: tests/spark runs the demo, and this very test is part of the other.
SETUP = ("pip install",)


CLUSTER = re.search(r"^## A cluster in a minute\n.*?^(?=## )", README, re.DOTALL | re.MULTILINE)[0]


def blocks(language: str, text: str = README.replace(CLUSTER, "")) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith(SETUP)]


@pytest.fixture
def environment(tmp_path, variables):
    """A directory to work in, and a PATH on which `pylog` is that of this test."""
    tools, work = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    script = f'#!/bin/sh\nexec {sys.executable} -c "from logstore.cli import main; main()" "$@"\n'
    (tools / "pylog").write_text(script)
    (tools / "pylog").chmod(0o755)
    return work, variables | {"PATH": f"{tools}{os.pathsep}{variables['PATH']}"}


def run(command, environment):
    work, variables = environment
    done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


ORDER = [
    "create",
    "produce",
    "consume",
    "list",
    "describe",
    "alter",
    "top",
    "dump-log",
    "verify",
    "recover",
    "tier",
    "retention",
    "compact",
    "transactions",
    *(f"schemas {word}" for word in ("register", "check", "list", "get", "level", "infer", "delete")),
    *(f"dlq {word}" for word in ("list", "show", "replay")),
    "delete-records",
    "delete",
]

LIVE = "pylog top --checkpoint checkpoints/thanks --path data"  # until Ctrl-C; tests/unit/logstore/cli/test_top.py


def shell(script, environment):
    return run(["bash", "-euo", "pipefail", "-c", script], environment)


def test_the_command_line_examples_run_and_show_what_they_say(environment):
    (script,) = blocks("bash")
    shown = shell(script, environment)
    assert "Ada\thome" in shown
    assert "Partitions: 2" in shown


@pytest.mark.slow
def test_the_cluster_of_the_readme_starts_and_serves(environment):
    (start,), (use,) = blocks("bash", CLUSTER), blocks("python", CLUSTER)
    work, _ = environment
    (work / "use.py").write_text(use)
    shown = shell(f"{start}\n{sys.executable} use.py\nkill %1\nwait", environment)
    assert shown == "b'hello'\n"
    assert [p.name for p in (work / "cluster").glob("broker-*/greetings-0")] == ["greetings-0"] * 3


@only_long("every command")
def test_the_examples_of_the_help_pages_run(environment, monkeypatch):
    """In this process, but for those with a pipe."""
    monkeypatch.chdir(environment[0])
    page = re.sub(r"([|])\n\s+|\\\n\s+", r"\1 ", (ROOT / "docs" / "cli.md").read_text())
    examples = [line.strip()[2:] for line in page.splitlines() if re.match(r"\s+\$ ", line)]
    # Those on a running cluster: tests/integration/cluster/test_tools.py.
    examples = [example for example in examples if "--bootstrap-server" not in example]
    shell("pylog topics create orders --path data; echo 1 | pylog produce orders --path data", environment)
    shell("pylog topics create orders-misfits --path data", environment)
    shell("pylog topics create test-1 --path data", environment)  # one that goes by a regular expression
    values = """echo '{"n": 1}' > payments.jsonl; pylog topics create payments --path data"""
    shell(f"{values}; pylog produce payments --path data < payments.jsonl", environment)
    ran = []
    for word in ORDER:
        for command in (e for e in examples if re.search(rf"pylog (topics )?{word}(?![\w-])", e) and e != LIVE):
            once = command.replace("topics create", "topics create --if-not-exists")
            if "|" in once:
                shell(once, environment)
            else:
                done = CliRunner().invoke(cli, shlex.split(once)[1:])
                assert done.exit_code == 0, f"{once}: {done.output}"
            ran.append(command)
    # The jobs need Spark: tests/spark/test_jobs.py runs their examples.
    # Brokers run until they are stopped, a mirror needs another Kafka, logs are of brokers: tests/integration/cluster.
    # tests/spark/test_pipelines.py begins a pipeline and runs it.
    elsewhere = (
        "pylog pipelines ",
        "cd shop && spark-pipelines ",
        "pylog jobs ",
        "pylog broker ",
        "pylog cluster ",
        "pylog mirror ",
        "pylog merge-state-logs ",
    )
    rest = {e for e in examples if e not in ran and not e.startswith(elsewhere)}
    assert rest == {"pylog demo --path pylog-demo", LIVE}


def test_the_numbers_are_where_they_are_looked_for():
    for place in ("demo-numbers", "benchmark-numbers"):
        assert README.index(f"<!-- {place}: begin") < README.index(f"<!-- {place}: end")
