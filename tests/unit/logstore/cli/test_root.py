"""The root command: its own commands, and those that other packages add."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

import logstore.cli
from logstore.cli import cli
from logstore.cli.places import loaded
from logstore.errors import PylogError


@pytest.fixture
def added(monkeypatch):
    """Pretend that installed packages add these commands: name -> module:attribute."""

    def add(**values):
        entries = [EntryPoint(name, value, "pylog.commands") for name, value in values.items()]
        monkeypatch.setattr(logstore.cli, "entry_points", lambda group: entries)

    add()
    return add


def run(*arguments):
    return CliRunner().invoke(cli, arguments, prog_name="pylog")


@click.command()
def hello():
    """Greet."""
    click.echo("hello")


@click.command()
def fails():
    """Fail."""
    raise PylogError("it did not work; try again")


@pytest.mark.usefixtures("added")
def test_help_lists_the_commands():
    shown = run("--help").stdout
    for name in ("topics", "produce", "consume", "dump-log", "verify", "recover"):
        assert f"\n  {name} " in shown


def test_a_command_of_another_package_is_found(added):
    added(hello=f"{__name__}:hello")
    assert re.search(r"^  hello +Greet\.$", run("--help").stdout, re.MULTILINE)
    assert run("hello").stdout == "hello\n"


def test_a_command_that_cannot_be_loaded_hides_no_other_and_says_why(added):
    added(broken="no_such_module:command", hello=f"{__name__}:hello")
    assert "(cannot be loaded)" in run("--help").stdout
    assert run("hello").exit_code == 0
    ran = run("broken")
    assert ran.exit_code == 1
    assert "no_such_module" in ran.stderr


def test_errors_are_one_line_for_added_commands_too(added):
    added(fails=f"{__name__}:fails")
    ran = run("fails")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (1, "", "pylog: it did not work; try again\n")


def test_an_added_command_cannot_replace_one_of_ours(added):
    added(topics=f"{__name__}:hello")
    assert "Create, list, describe" in run("topics", "--help").stdout


@pytest.mark.usefixtures("added")
def test_wrong_usage_has_exit_code_2():
    assert run("nonsense").exit_code == 2
    assert run("topics", "list").exit_code == 2
    assert run("topics", "list", "--path", "x", "--output", "xml").exit_code == 2


def test_a_mistyped_command_is_answered_by_the_right_one(added):
    added(hello=f"{__name__}:hello")
    assert "no command 'topic'; did you mean 'topics', 'top'?" in run("topic").stderr
    assert "no command 'hallo'; did you mean 'hello'?" in run("hallo").stderr
    assert "no command 'lst'; did you mean 'list'?" in run("topics", "lst").stderr
    assert "there are 'alter', 'create'" in run("topics", "xyz").stderr
    assert "No such option" in run("--nonsense").stderr


@pytest.mark.usefixtures("added")
def test_the_path_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLOG_PATH", str(tmp_path / "data"))
    assert run("topics", "create", "orders").exit_code == 0
    assert (tmp_path / "data" / "orders-0").is_dir()


@pytest.mark.usefixtures("added")
def test_what_is_no_store_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    ran = run("topics", "create", "orders", "--path", str(tmp_path))
    assert ran.exit_code == 1
    assert "not a pylog store" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_list_of_commands_says_the_first_sentence_of_each_of_them_and_loads_none():
    groups = [cli, *map(loaded, ("logstore.cli.transactions:transactions", "replication.cli.brokers:cluster"))]
    places = {name: place for group in groups for name, place in group.placed.items()}
    for name, (place, told) in places.items():
        first = " ".join(loaded(place).help.split("\n\n")[0].split())
        assert first.startswith(told.rstrip(".")), name
    code = "import sys; from logstore.cli import main\ntry: main()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "logstore.cli.terminal" in modules
    assert not modules & {place.partition(":")[0] for place, _ in places.values()}
