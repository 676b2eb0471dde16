"""`pylog` as a function: arguments and stdin in, exit code and both outputs out."""

import json

import pytest
from click.testing import CliRunner

from logstore.cli import cli


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def pylog(path):
    """Run a command on the store at `path`; the result knows `.json` and `.lines`."""

    def run(*arguments, input=None, store=True):
        given = [*map(str, arguments), *(["--path", str(path)] if store else [])]
        result = CliRunner().invoke(cli, given, input=input, prog_name="pylog", catch_exceptions=True)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result)

    return run


class Ran:
    def __init__(self, result):
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def json_lines(self):
        return [json.loads(line) for line in self.lines]

    def ok(self):
        assert self.code == 0, self.err
        return self

    def failed(self, out=""):
        """Exit code 1, nothing (or `out`, if given as lines of words) on stdout, one line on stderr: returned."""
        assert self.code == 1
        assert [line.split() for line in self.lines] == list(out)
        assert len(self.err.splitlines()) == 1
        return self.err
