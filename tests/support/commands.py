"""`pylog` as a function: arguments and stdin in, exit code and both outputs out."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from logstore.cli import cli

ROOT = Path(__file__).parents[2]


def run_pylog(*arguments, input=None, env=None):
    given = [*map(str, arguments)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = CliRunner().invoke(cli, given, input=input, env=env, prog_name="pylog", catch_exceptions=True)
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:  # a command that goes on until one of them comes
                signal.signal(number, handler)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result)


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


def rows(ran):
    """The cells of a table, without its titles."""
    return rows_of(ran.ok())


def rows_of(ran):
    """Like `rows`, whatever the exit code."""
    return [line.split() for line in ran.lines[1:]]


def loaded_by_command(text, *arguments):
    """The modules that a process of `pylog` has loaded at its end."""
    code = (
        "import atexit, sys; from logstore.cli import main\n"
        "atexit.register(lambda: print(*(name for name in sys.modules if sys.modules[name]), file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())
