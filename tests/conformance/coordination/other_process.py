"""Roles for other processes: python -m tests.conformance.coordination.other_process ADDRESS ROLE ARG…"""

import asyncio
import json
import sqlite3
import sys

from replication.coordination import open_tree
from replication.coordination.registration import register_broker
from replication.coordination.tree import BadVersionError, CoordinationError, SessionEvent, SetData
from replication.model.cluster import BrokerInfo
from tests.support.trees import SESSION_MS


def say(**facts):
    print(json.dumps(facts), flush=True)


async def live(address, path):
    """Make an ephemeral node; say what becomes of the session, and end with it."""
    over = asyncio.Event()
    tree = None

    def on_session(event):
        say(event=event, lease_end_ms=tree.lease_end_ms)
        if event is SessionEvent.EXPIRED:
            over.set()

    tree = await open_tree(address, on_session=on_session, session_timeout_ms=SESSION_MS)
    await tree.create(path, ephemeral=True)
    say(session=tree.session)
    await over.wait()
    try:
        await tree.create(path, ephemeral=True)
    except CoordinationError as error:
        say(error=type(error).__name__)
    await tree.close()


async def register(address, broker):
    """Register a broker, and stay."""
    tree = await open_tree(address, on_session=say_event, session_timeout_ms=SESSION_MS)
    info = BrokerInfo(int(broker), -1, "localhost", 9092)
    epoch = await register_broker(tree, info, now_ms=1, wait_ms=10_000)
    say(epoch=epoch, token=tree.token.decode())
    await asyncio.Event().wait()


async def count(address, path, times):
    """Add one so many times, by conditional writes."""
    tree = await open_tree(address, on_session=say_event, session_timeout_ms=SESSION_MS * 4)
    say(ready=True)
    conflicts = done = 0
    while done < int(times):
        node = await tree.get(path)
        try:
            await tree.set(path, b"%d" % (int(node.data) + 1), node.version)
            done += 1
        except BadVersionError:
            conflicts += 1
    say(conflicts=conflicts)
    await tree.close()


async def write_pairs(address):
    """Write the same number to /a and /b for ever, in one step each time; say it when it is done."""
    tree = await open_tree(address, on_session=say_event, session_timeout_ms=SESSION_MS)
    number = int((await tree.get("/a")).data)
    while True:
        number += 1
        data = b"%d" % number
        await tree.multi([SetData("/a", data), SetData("/b", data)])
        say(done=number)


async def sit(address):
    """Hold the lock of the SQLite file, with half a transaction written."""
    db = sqlite3.connect(address.partition(":")[2], isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE node SET data = x'00' WHERE path = '/a'")
    say(sits=True)
    await asyncio.Event().wait()


def say_event(event):
    say(event=event)


ROLES = {"live": live, "register": register, "count": count, "write_pairs": write_pairs, "sit": sit}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[2]](sys.argv[1], *sys.argv[3:]))
