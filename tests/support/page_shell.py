"""The bash of a page in a real bash, where `pylog` is a function that asks this process to run the command.

To start a Python for each of a hundred commands takes a minute. So they run as `tests.support.commands` runs them, and
`pylog broker start … & echo $! > FILE` is forked by `tests.support.fork_server`.
"""

import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.support.commands import run_pylog
from tests.support.fork_server import quick

PYLOG = quick("from logstore.cli import main; main()")
# Becomes a call that comes back at once, with the two files first.
STARTED = re.compile(r"(pylog broker start[^&]*) > (\S+) 2>&1 & echo \$! > (\S+)$", re.MULTILINE)
ASKS = """
pylog() {
  local wire code
  exec {wire}<> /dev/tcp/127.0.0.1/PORT
  printf '%s\\0' "${PYLOG_BOOTSTRAP-}" "$@" >&$wire; echo >&$wire
  read -r code <&$wire; exec {wire}>&-
  cat .said; cat .complained >&2
  return $code
}
sleep() { command sleep 0.1; }
"""


def run_page(script, directory, environment, timeout_s):
    """Return what the script shows; ports 9091 to 9094 are free ones instead. No broker is left behind."""
    script = STARTED.sub(r"pylog \2 \3 \1", script).replace(":909", f":{free_prefix()}")
    processes = []
    with socket.create_server(("127.0.0.1", 0)) as listener, (directory / "shown").open("w+") as shown:
        asks = ASKS.replace("PORT", str(listener.getsockname()[1]))
        bash = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", asks + script], cwd=directory, stdout=shown, stderr=subprocess.STDOUT
        )
        processes.append(bash)
        try:
            end_s = time.monotonic() + timeout_s
            while bash.poll() is None:
                assert time.monotonic() < end_s, f"it takes too long:\n{Path(shown.name).read_text()}"
                if select.select([listener], [], [], 0.02)[0]:
                    answer(listener.accept()[0], directory, environment, processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        text = Path(shown.name).read_text()
        assert bash.returncode == 0, text
        return text


def answer(wire, directory, environment, processes):
    with wire:
        asked = b""
        while not asked.endswith(b"\0\n"):
            asked += wire.recv(65536)
        bootstrap, *arguments = asked[:-2].decode().split("\0")
        said = complained = ""
        code = 0
        if arguments[2:5] == ["pylog", "broker", "start"]:
            out, pid, _, *command = arguments
            processes.append(start_broker(directory, out, pid, command, environment))
        else:
            ran = run_pylog(*arguments, env={"PYLOG_BOOTSTRAP": bootstrap})
            said, complained, code = ran.out, ran.err, ran.code
        (directory / ".said").write_text(said)
        (directory / ".complained").write_text(complained)
        wire.sendall(b"%d\n" % code)


def start_broker(directory, out, pid, command, environment):
    with (directory / out).open("wb") as file:
        broker = subprocess.Popen(
            [sys.executable, "-c", PYLOG, *command], cwd=directory, stdout=file, stderr=file, env=environment
        )
    (directory / pid).write_text(f"{broker.pid}\n")
    threading.Thread(target=broker.wait, daemon=True).start()  # a shell buries its children at once, too
    return broker


def free_prefix():
    """Return digits: ports of one more, 1 to 4, are free, and below those that the kernel gives away."""
    while True:
        prefix = random.randrange(1100, 3200)
        with suppress(OSError):
            for last in range(1, 5):
                socket.create_server(("127.0.0.1", 10 * prefix + last)).close()
            return prefix
