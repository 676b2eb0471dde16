"""A forked broker (tests/support/fork_server.py) differs from an executed one only by its speed."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.fork_server import quick

TELLS = """
import json, os, signal, sys, threading
print(json.dumps([
    __name__, sys.argv, os.getcwd(), os.environ.get("TOLD"), os.umask(0), os.getppid(), os.getsid(0), os.getpgid(0),
    sys.stdin.read(), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM),
    signal.getsignal(signal.SIGPIPE), threading.active_count(), os.listdir("/proc/self/fd"),
]))
print("end", file=sys.stderr)
sys.exit(7)
"""
WAITS = quick("import sys, time; print('replication' in sys.modules, flush=True); time.sleep(60)")


def ran(code, tmp_path):
    command = [sys.executable, "-c", code, "one", "two"]
    done = subprocess.run(
        command, input="in", capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"TOLD": "x"}, check=False
    )
    return done.stdout, done.stderr, done.returncode


def test_a_forked_program_finds_what_an_executed_one_finds(tmp_path):
    assert ran(quick(TELLS), tmp_path) == ran(TELLS + "\n", tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_is_a_child_of_who_started_it_and_ends_by_a_signal(number):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(10) == -number


def test_a_program_with_a_path_of_its_own_is_executed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = quick("import sys; print('replication' in sys.modules)")
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "mine\nFalse\n"
