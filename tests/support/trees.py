"""A store under test: opens sessions in it, cuts all of them off, runs other processes with it."""

import asyncio
import functools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

from replication.coordination import open_tree
from tests.support.fork_server import quick

ROOT = Path(__file__).parents[2]
OTHER_PROCESS = quick("tests.conformance.coordination.other_process", "-m")
SESSION_MS = 1500
TEST_S = 60
LOCKED_WITHIN_S = 30


def on_loop(test):
    """Run an async test; sessions that it left open are closed."""

    @functools.wraps(test)
    def run(**fixtures):
        room = fixtures.get("room") or fixtures["sqlite_room"]

        async def whole():
            try:
                async with asyncio.timeout(TEST_S):
                    await test(**fixtures)
            finally:
                await room.close_sessions()

        asyncio.run(whole())

    return run


class Told:
    """Keeps what it is called with, and lets a test wait for it."""

    def __init__(self):
        self.all = []
        self._more = asyncio.Event()

    def __call__(self, fact):
        self.all.append(fact)
        self._more.set()

    async def until(self, holds):
        while not holds(self.all):
            self._more.clear()
            await self._more.wait()


class Session:
    """A tree, and what became of its session."""

    def __init__(self):
        self.tree = None
        self.told = Told()

    @property
    def events(self):
        return self.told.all

    async def event(self, wanted):
        await self.told.until(lambda events: wanted in events)


class Seen(Told):
    """A watch, and what it was told."""

    @property
    def changes(self):
        return self.all

    async def change(self, count=1):
        await self.until(lambda changes: len(changes) >= count)
        return self.all[count - 1]


class Room:
    """Parts that both kinds have in common."""

    address: str

    def __init__(self):
        self._sessions = []
        self._processes = []

    async def open(self, *, timeout_ms=SESSION_MS):
        session = Session()
        session.tree = await open_tree(self.address, on_session=session.told, session_timeout_ms=timeout_ms)
        self._sessions.append(session)
        return session

    async def tree(self, **options):
        return (await self.open(**options)).tree

    async def close_sessions(self):
        self.heal()
        for session in self._sessions:
            await session.tree.close()

    def spawn(self, role, *args):
        """Another process, in a role of `other_process.py`."""
        process = Other([sys.executable, "-m", OTHER_PROCESS, self.address, role, *args])
        self._processes.append(process)
        return process

    def heal(self):
        """Undo `cut`."""

    def end(self):
        for process in self._processes:
            process.close()


class Other:
    """A process that prints JSON lines."""

    def __init__(self, command):
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )

    async def line(self):
        text = await asyncio.to_thread(self._process.stdout.readline)
        assert text, "the other process has ended"
        return json.loads(text)

    def rest(self):
        """All that it printed and that was not read; it must have ended or been killed."""
        return [json.loads(line) for line in self._process.stdout.read().splitlines() if line.endswith("}")]

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def close(self):
        self.kill()
        self._process.wait()
        self._process.stdout.close()


async def sit_on(path):
    """Take the lock of a SQLite file; return the connection that has it.

    The event loop goes on meanwhile: a client of it that has the lock may need the loop to let go.
    """
    sitter = sqlite3.connect(path, isolation_level=None, timeout=0)
    async with asyncio.timeout(LOCKED_WITHIN_S):
        while True:
            try:
                sitter.execute("BEGIN IMMEDIATE")
                return sitter
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
            await asyncio.sleep(0.001)


class SqliteRoom(Room):
    """A file. It is cut off from all writers while somebody sits on its lock."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.address = f"sqlite:{path}"
        self._sitter = None

    async def cut(self):
        self._sitter = await sit_on(self.path)

    def heal(self):
        if self._sitter is not None:
            self._sitter.execute("ROLLBACK")
            self._sitter.close()
            self._sitter = None


class ZooKeeperRoom(Room):
    """A chroot of a server, behind a proxy that can be cut."""

    def __init__(self, server, name):
        super().__init__()
        host, _, port = server.rpartition(":")
        self._proxy = Proxy((host, int(port)))
        self.address = f"zookeeper:127.0.0.1:{self._proxy.port}/{name}"

    async def cut(self):
        self._proxy.cut()

    def heal(self):
        self._proxy.is_cut = False

    def end(self):
        super().end()
        self._proxy.close()


class Proxy:
    """Passes bytes on, until it is cut: then it ends all connections, and takes none."""

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = []
        self.is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self.is_cut = True
        for sock in self._sockets:
            shut(sock)

    def close(self):
        self.cut()
        shut(self._listener)
        self._listener.close()
        for sock in self._sockets:
            sock.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.create_connection(self._server)
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()


def pass_on(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    shut(source)
    shut(sink)


def shut(sock):
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
