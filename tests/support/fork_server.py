"""Brokers of tests are forked from a process that has loaded what they need: to load it is a second of work.

`begin` lets `subprocess.Popen` do so for the commands that are named with `quick`. All else is as ever: the process is
a child of this one, with a pid, an environment, files and an exit code of its own. It does not know that it was forked:
its program runs as `__main__` from the first line on, and the interpreter ends as it always does.
"""

import atexit
import ctypes
import functools
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
BROKER = "replication.broker.process"
# Also for `pylog`, and the kernels, which a broker loads with its first records.
LOADED = ("uvloop", BROKER, "replication.cli.brokers", "logstore.records.kernels")
WAIT_S = 30
STARTS_WITHIN_S = 240  # kernels whose sources are new are compiled first
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_quick = {("-m", BROKER)}


def quick(what, option="-c"):
    """Return this code, or with `-m` module, which is forked from now on: it needs little but a broker's modules."""
    _quick.add((option, what))
    return what


# --------------------------------------------------------------- who asks for them


def begin():
    """Fork what is `quick`, once somebody starts it. Nothing happens where there is no such thing as a subreaper."""
    if sys.platform != "linux":
        return
    server, known = _Server(), {"", *sys.path, *_path_of(os.environ)}
    execute = subprocess.Popen._execute_child
    places = inspect.signature(execute)

    @functools.wraps(execute)
    def fork_or_execute(self, *given):
        wish = places.bind(self, *given).arguments
        own = (each for each in _path_of(wish["env"] or os.environ) if each not in known)
        if _may_be_forked(wish) and not any(map(_has_something_else, own)):
            self.pid = server.fork(wish)
            self._child_created = True
            self._close_pipe_fds(*(wish[end] for end in _PIPES))
        else:
            execute(self, *given)

    subprocess.Popen._execute_child = fork_or_execute


def _has_something_else(place):
    """Would a program with this place in its path begin with what the server has not run? pytest and Spark add some."""
    return place != ROOT and any(Path(place, name).exists() for name in ("sitecustomize.py", "logstore"))


def _path_of(environment):
    return environment.get("PYTHONPATH", "").split(os.pathsep)


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _may_be_forked(wish):
    command = wish["args"]
    own = ("shell", "preexec_fn", "pass_fds", "start_new_session", "uid", "gid", "gids")
    plain = not any(wish[name] for name in own) and wish["umask"] == wish["process_group"] == -1
    return plain and isinstance(command, list) and command[0] == sys.executable and tuple(command[1:3]) in _quick


class _Server:
    def __init__(self):
        self._socket = None
        self._turn = threading.Lock()
        self._control = ctypes.CDLL(None).prctl

    def _start(self):
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(STARTS_WITHIN_S)
        with its:
            command = [sys.executable, "-m", __name__, str(its.fileno())]
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},  # numpy's: it would begin threads
            )  # fmt: skip
        atexit.register(self._end)
        assert self._socket.recv(100) == b"ready"
        self._socket.settimeout(WAIT_S)

    def _end(self):
        self._socket.close()
        self._process.wait()

    def fork(self, wish):
        """Return the process id of a new child of this process."""
        with self._turn:
            if self._socket is None:
                self._start()
            return self._fork(wish)

    def _fork(self, wish):
        umask = os.umask(0o022)
        os.umask(umask)
        asked = {
            "argv": [os.fspath(each) for each in wish["args"]],
            "environment": dict(os.environ if wish["env"] is None else wish["env"]),
            "cwd": str(wish["cwd"] or Path.cwd()),
            "parent": os.getpid(),
            "umask": umask,
        }
        files = [wish["p2cread"], wish["c2pwrite"], wish["errwrite"]]
        text = json.dumps(asked, default=os.fspath).encode()
        # The asking process becomes the parent when the process in between has ended.
        self._control(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [text], [own if file < 0 else file for own, file in enumerate(files)])
            child = int(self._socket.recv(100))
            assert self._socket.recv(100) == b"adopted"
            return child
        finally:
            self._control(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# --------------------------------------------------------------- the server


def _load():
    sys.modules["hypothesis"] = None  # kio imports it where it is installed; replication.broker.process says the same
    for name in LOADED:
        import_module(name)
    del sys.modules[BROKER]  # it shall run, not be imported
    del sys.modules["hypothesis"]
    gc.collect()
    gc.freeze()  # a child shares the memory of what is never looked at again


def _serve(asker):
    """Return in each child, with what it was asked for; in the server, None at the end."""
    _load()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has the thread that forks, and no other"
    asker.send(b"ready")
    while True:
        text, files, _, _ = socket.recv_fds(asker, 1 << 20, 3)
        if not text:
            return None
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                asker.close()
                return _become(json.loads(text), files)
            asker.send(b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)
        asker.send(b"adopted")
        for file in files:
            os.close(file)


def _become(asked, files):
    end_s = time.monotonic() + WAIT_S
    while os.getppid() != asked["parent"]:
        if time.monotonic() > end_s:
            os._exit(1)
        time.sleep(0.001)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return asked["argv"]


def _run(argv):
    _, kind, what, *arguments = argv
    if kind == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    if argv is not None:
        _run(argv)
