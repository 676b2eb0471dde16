"""The ends of sessions: ended, silent, cut off, killed; and their writes under way."""

import asyncio
import time

import pytest

from replication.coordination.tree import (
    ConnectionLossError,
    SessionEvent,
    SessionExpiredError,
    SetData,
)
from tests.support.trees import SESSION_MS, Seen, on_loop
from tests.support.waits import stays


def now_ms():
    return time.monotonic_ns() // 1_000_000


@on_loop
async def test_ephemeral_nodes_go_with_their_session(room):
    tree, other = await room.tree(), await room.tree()
    await tree.create("/short", ephemeral=True)
    await tree.create("/long")
    assert (await other.get("/short")).owner == tree.session
    seen = Seen()
    await other.get("/short", seen)
    await tree.close()
    await seen.change()
    assert await other.get("/short") is None
    assert await other.get("/long") is not None


@on_loop
async def test_a_closed_tree_takes_no_calls(room):
    tree = await room.tree()
    await tree.close()
    with pytest.raises(SessionExpiredError):
        await tree.get("/")
    await tree.close()


@on_loop
async def test_a_session_lives_on_by_itself(room):
    session, other = await room.open(), await room.tree()
    await session.tree.create("/short", ephemeral=True)
    first_ms = session.tree.lease_end_ms
    async with asyncio.timeout(20 * SESSION_MS / 1000):
        while session.tree.lease_end_ms < first_ms + 2 * SESSION_MS:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
    assert await other.get("/short") is not None
    assert session.events == []
    assert session.tree.lease_end_ms > first_ms
    assert session.tree.lease_end_ms <= now_ms() + SESSION_MS


@on_loop
async def test_an_ended_session_is_over_for_good(room):
    session, other = await room.open(), await room.tree()
    await session.tree.create("/short", ephemeral=True)
    await other.end_session(session.tree.token)
    await session.event(SessionEvent.EXPIRED)
    assert await other.get("/short") is None
    for call in (
        session.tree.get("/"),
        session.tree.create("/short", ephemeral=True),
        session.tree.multi([]),
    ):
        with pytest.raises(SessionExpiredError):
            await call
    assert session.events[-1] is SessionEvent.EXPIRED
    assert await other.get("/short") is None


@on_loop
async def test_ending_a_session_that_is_over_does_nothing(room):
    tree, other = await room.tree(), await room.tree()
    await tree.close()
    await other.end_session(tree.token)
    assert await other.get("/") is not None


@on_loop
async def test_a_client_paused_longer_than_its_session_finds_it_over(room):
    # (R24) others see it go after its lease, and it does nothing more once it goes on
    tree = await room.tree()
    process = room.spawn("live", "/paused")
    await process.line()
    seen = Seen()
    await tree.get("/paused", seen)
    process.pause()
    paused_ms = now_ms()
    await seen.change()
    gone_ms = now_ms()
    assert gone_ms - paused_ms < 3 * SESSION_MS
    process.go_on()
    lines = []
    while "error" not in (line := await process.line()):
        lines.append(line)
    assert line == {"error": "SessionExpiredError"}
    assert lines[-1]["event"] == "EXPIRED"
    assert lines[-1]["lease_end_ms"] <= gone_ms
    assert await tree.get("/paused") is None


@on_loop
async def test_a_killed_client_is_gone_after_its_timeout(room):
    tree = await room.tree()
    process = room.spawn("live", "/killed")
    await process.line()
    seen = Seen()
    await tree.get("/killed", seen)
    process.kill()
    killed_ms = now_ms()
    await seen.change()
    assert SESSION_MS // 2 < now_ms() - killed_ms < 3 * SESSION_MS


@on_loop
async def test_suspended_is_not_lost(room):
    # (R25) a blip: nothing may rest on the session meanwhile, but it lives on, and so do its nodes
    session = await room.open(timeout_ms=4000)
    tree = session.tree
    await tree.create("/short", ephemeral=True)
    dropped = Seen()
    await tree.get("/short", dropped)
    await room.cut()
    await session.event(SessionEvent.SUSPENDED)
    with pytest.raises(ConnectionLossError):
        await tree.set("/short", b"1")
    lease_end_ms = tree.lease_end_ms
    room.heal()
    await session.event(SessionEvent.CONNECTED)
    assert session.events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
    node = await tree.get("/short")
    assert (node.owner, node.version) == (tree.session, 0)
    await tree.set("/short", b"2")
    assert dropped.changes == []
    assert tree.lease_end_ms >= lease_end_ms


@on_loop
async def test_a_call_under_way_when_the_connection_goes_fails_and_does_not_hang(room):
    session = await room.open(timeout_ms=4000)
    await session.tree.create("/a", b"0")

    under_way = asyncio.Event()

    async def write_for_ever():
        while True:
            await session.tree.set("/a", b"1")
            under_way.set()

    writing = asyncio.create_task(write_for_ever())
    await under_way.wait()
    await room.cut()
    with pytest.raises(ConnectionLossError):
        await writing
    room.heal()
    await session.event(SessionEvent.CONNECTED)
    assert (await session.tree.get("/a")).data == b"1"


@on_loop
async def test_conditional_writes_of_several_processes_lose_nothing(room):
    tree = await room.tree()
    await tree.create("/n", b"0")
    processes = [room.spawn("count", "/n", "25") for _ in range(3)]
    for process in processes:
        await process.line()
    for process in processes:
        assert "conflicts" in await process.line()
    node = await tree.get("/n")
    assert (node.data, node.version) == (b"75", 75)


@on_loop
async def test_a_process_killed_in_the_middle_leaves_whole_steps(room):
    tree = await room.tree()
    for path in ("/a", "/b"):
        await tree.create(path, b"0")
    done = 0
    for kill in range(6):
        process = room.spawn("write_pairs")
        done = (await process.line())["done"]
        await asyncio.sleep(0.02 * kill)
        process.kill()
        done = max([done, *(line["done"] for line in process.rest())])
        a, b = await tree.read_batch(["/a", "/b"])
        assert a.data == b.data
        assert int(a.data) in (done, done + 1)  # what was said to be done is; one more may be


@on_loop
async def test_a_process_killed_with_the_lock_leaves_nothing(sqlite_room):
    session = await sqlite_room.open()
    await session.tree.create("/a", b"before")
    process = sqlite_room.spawn("sit")
    await process.line()
    process.kill()
    await session.tree.set("/a", b"after", 0)
    assert SessionEvent.EXPIRED not in session.events


@on_loop
async def test_nobody_expires_by_a_process_that_stops_with_the_lock(sqlite_room):
    # It holds everybody up, for longer than their sessions: then all are suspended, and none is lost.
    sessions = [await sqlite_room.open() for _ in range(3)]
    for number, session in enumerate(sessions):
        await session.tree.create(f"/{number}", ephemeral=True)
    process = sqlite_room.spawn("sit")
    await process.line()
    process.pause()
    for session in sessions:
        await session.event(SessionEvent.SUSPENDED)
    await asyncio.sleep(2 * SESSION_MS / 1000)
    process.kill()
    for session in sessions:
        await session.event(SessionEvent.CONNECTED)
    await stays(lambda: all(len(session.events) == 2 for session in sessions), SESSION_MS / 1000)
    for number, session in enumerate(sessions):
        assert (await session.tree.get(f"/{number}")).owner == session.tree.session
        assert session.events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


@on_loop
async def test_calls_of_one_tree_run_side_by_side(room):
    tree = await room.tree()
    await tree.create("/p")
    await asyncio.gather(*(tree.create(f"/p/{i:03}") for i in range(300)))
    assert len(await tree.children("/p")) == 300
    await asyncio.gather(*(tree.multi([SetData(f"/p/{i:03}", b"1", 0)]) for i in range(300)))
