"""Nodes, conditional writes, multis, batches and watches, in every store alike."""

import asyncio

import pytest

from logstore.errors import InvalidConfigError, InvalidRequestError
from replication.coordination import open_tree
from replication.coordination.tree import (
    DATA_BYTES_MAX,
    BadVersionError,
    Check,
    Create,
    Delete,
    Done,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SetData,
    ensure_path,
)
from tests.support.trees import Seen, on_loop

# ------------------------------------------------------------- nodes


@on_loop
async def test_a_node_is_read_as_it_was_written(room):
    tree = await room.tree()
    assert await tree.create("/a", b"one") == "/a"
    node = await tree.get("/a")
    assert (node.data, node.version, node.owner) == (b"one", 0, 0)
    assert await tree.get("/b") is None


@on_loop
async def test_a_version_grows_with_every_write(room):
    tree = await room.tree()
    await tree.create("/a")
    assert [await tree.set("/a", data) for data in (b"1", b"2")] == [1, 2]
    node = await tree.get("/a")
    assert (node.data, node.version) == (b"2", 2)


@on_loop
async def test_a_node_made_again_has_a_greater_creation(room):
    tree = await room.tree()
    creations = []
    for path in ("/a", "/b", "/a"):
        if await tree.get(path) is not None:
            await tree.delete(path)
        await tree.create(path)
        creations.append((await tree.get(path)).creation)
    assert creations == sorted(set(creations))


@on_loop
async def test_a_write_for_another_version_is_refused(room):
    tree = await room.tree()
    await tree.create("/a", b"0")
    await tree.set("/a", b"1", 0)
    with pytest.raises(BadVersionError):
        await tree.set("/a", b"2", 0)
    with pytest.raises(BadVersionError):
        await tree.delete("/a", 0)
    assert (await tree.get("/a")).data == b"1"
    await tree.delete("/a", 1)
    assert await tree.get("/a") is None


@on_loop
async def test_what_cannot_be_done_says_why(room):
    tree = await room.tree()
    await tree.create("/a")
    await tree.create("/a/b")
    await tree.create("/short", ephemeral=True)
    for error, call in [
        (NodeExistsError, tree.create("/a")),
        (NoNodeError, tree.create("/x/y")),
        (NoNodeError, tree.set("/x", b"")),
        (NoNodeError, tree.delete("/x")),
        (NoNodeError, tree.children("/x")),
        (NotEmptyError, tree.delete("/a")),
        (EphemeralParentError, tree.create("/short/child")),
    ]:
        with pytest.raises(error) as raised:
            await call
        assert raised.value.path.startswith("/")


@on_loop
async def test_children_are_names_in_order(room):
    tree = await room.tree()
    for path in ("/a", "/a/c", "/a/b", "/a/b/deep", "/ab"):
        await tree.create(path)
    assert await tree.children("/a") == ("b", "c")
    assert set(await tree.children("/")) >= {"a", "ab"}


@on_loop
async def test_sequence_numbers_grow_even_after_deletes(room):
    tree = await room.tree()
    await tree.create("/s")
    made = [await tree.create("/s/n_", b"x", sequence=True) for _ in range(2)]
    await tree.delete(made[1])
    made.append(await tree.create("/s/n_", sequence=True))
    assert made[0] == "/s/n_0000000000"
    assert made == sorted(set(made))
    assert {len(path) for path in made} == {len("/s/n_") + 10}


@on_loop
async def test_ensure_path_makes_what_is_missing_and_twice_is_fine(room):
    one, two = await room.tree(), await room.tree()
    await asyncio.gather(*(ensure_path(tree, "/a/b/c") for tree in (one, two) for _ in range(2)))
    assert await one.children("/a/b") == ("c",)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a/../b", "/a/./b", "/a\0"])
@on_loop
async def test_what_is_no_path_is_refused(room, path):
    tree = await room.tree()
    for call in (tree.get(path), tree.create(path), tree.children(path), tree.delete(path)):
        with pytest.raises(InvalidRequestError):
            await call


@on_loop
async def test_a_node_holds_up_to_a_million_bytes(room):
    tree = await room.tree()
    data = b"x" * (DATA_BYTES_MAX - 200)
    await tree.create("/large", data)
    assert (await tree.get("/large")).data == data
    with pytest.raises(InvalidRequestError, match="takes 1,000,000"):
        await tree.set("/large", b"x" * (DATA_BYTES_MAX + 1))
    with pytest.raises(InvalidRequestError, match="takes 1,000,000"):
        await tree.multi([SetData("/large", data), SetData("/large", data)])


# -------------------------------------------------- multis and batches


@on_loop
async def test_a_multi_does_all_its_steps(room):
    tree = await room.tree()
    await tree.create("/a", b"0")
    done = await tree.multi(
        [
            Check("/a", 0),
            SetData("/a", b"1", 0),
            SetData("/a", b"2", 1),
            Create("/b", b"new"),
            Create("/b/n_", sequence=True),
            Create("/gone"),
            Delete("/gone"),
        ]
    )
    assert done == (
        Done("/a"),
        Done("/a", 1),
        Done("/a", 2),
        Done("/b", 0),
        Done("/b/n_0000000000", 0),
        Done("/gone", 0),
        Done("/gone"),
    )
    assert [node and node.data for node in await tree.read_batch(["/a", "/b", "/gone"])] == [
        b"2",
        b"new",
        None,
    ]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Check("/a", 7), BadVersionError),
        (SetData("/a", b"", 7), BadVersionError),
        (Create("/a"), NodeExistsError),
        (Create("/x/y"), NoNodeError),
        (Delete("/x"), NoNodeError),
        (Check("/x", 0), NoNodeError),
    ],
)
@on_loop
async def test_a_multi_does_nothing_if_one_step_is_refused(room, bad, error):
    tree = await room.tree()
    await tree.create("/a", b"0")
    with pytest.raises(error) as raised:
        await tree.multi([SetData("/a", b"1"), Create("/b"), bad, Create("/c")])
    assert raised.value.index == 2
    assert (raised.value.path, (await tree.get("/a")).version) == (bad.path, 0)
    assert await tree.read_batch(["/b", "/c"]) == (None, None)


@on_loop
async def test_a_batch_has_a_result_for_each_and_one_refused_does_not_stop_others(room):
    tree = await room.tree()
    await tree.create("/guard")
    await tree.create("/p")
    paths = [f"/p/{i:03}" for i in range(200)]
    made = await tree.write_batch([[Check("/guard", 0), Create(path, b"0")] for path in paths])
    assert [result[1].version for result in made] == [0] * 200
    await tree.set("/p/007", b"other")
    results = await tree.write_batch([[Check("/guard", 0), SetData(path, b"1", 0)] for path in paths])
    refused = {i for i, result in enumerate(results) if isinstance(result, BadVersionError)}
    assert refused == {7}
    assert results[7].index == 1
    assert [node.data for node in await tree.read_batch(paths)] == [b"other" if i == 7 else b"1" for i in range(200)]


@on_loop
async def test_a_batch_whose_guard_has_changed_writes_nothing(room):
    tree = await room.tree()
    for path in ("/guard", "/a", "/b"):
        await tree.create(path, b"0")
    await tree.set("/guard", b"1")
    results = await tree.write_batch([[Check("/guard", 0), SetData(path, b"1")] for path in ("/a", "/b")])
    assert [(type(result), result.index) for result in results] == [(BadVersionError, 0)] * 2
    assert [node.data for node in await tree.read_batch(["/a", "/b"])] == [b"0", b"0"]


@on_loop
async def test_an_empty_batch_is_fine(room):
    tree = await room.tree()
    assert await tree.write_batch([]) == ()
    assert await tree.read_batch([]) == ()


# -------------------------------------------------------------- watches


@on_loop
async def test_a_watch_is_told_once(room):
    tree, other = await room.tree(), await room.tree()
    await tree.create("/a")
    seen = Seen()
    await tree.get("/a", seen)
    await other.set("/a", b"1")
    assert await seen.change() == "/a"
    await other.set("/a", b"2")
    assert (await tree.get("/a")).data == b"2"
    assert len(seen.changes) == 1


@on_loop
async def test_a_watch_on_what_is_not_there_is_told_of_its_creation(room):
    tree, other = await room.tree(), await room.tree()
    seen = Seen()
    assert await tree.get("/controller", seen) is None
    await other.create("/controller", ephemeral=True)
    assert await seen.change() == "/controller"
    gone = Seen()
    assert await tree.get("/controller", gone) is not None
    await other.close()
    assert await gone.change() == "/controller"


@on_loop
async def test_a_watch_of_children_is_told_when_one_comes_or_goes_and_not_of_their_data(room):
    tree, other = await room.tree(), await room.tree()
    await tree.create("/ids")
    came, went = Seen(), Seen()
    await tree.children("/ids", came)
    await other.create("/ids/1")
    assert await came.change() == "/ids"
    assert await tree.children("/ids", went) == ("1",)
    await other.set("/ids/1", b"data")
    await tree.get("/ids/1")
    assert went.changes == []
    await other.delete("/ids/1")
    assert await went.change() == "/ids"


@on_loop
async def test_a_child_that_went_and_came_again_is_told(room):
    # (R18) a broker that bounces: the list of children is the same afterwards, the creation is not
    tree, other = await room.tree(), await room.tree()
    await tree.create("/ids")
    await tree.create("/ids/1")
    seen = Seen()
    await tree.children("/ids", seen)
    await other.multi([Delete("/ids/1"), Create("/ids/1")])
    assert await seen.change() == "/ids"


@on_loop
async def test_own_writes_are_told_before_they_return(room):
    tree = await room.tree()
    await tree.create("/a")
    seen = Seen()
    await tree.get("/a", seen)
    await tree.set("/a", b"1")
    assert seen.changes == ["/a"]


@on_loop
async def test_a_watch_is_called_before_its_tree_sees_newer_data(room):
    tree, other = await room.tree(), await room.tree()
    await tree.create("/a", b"0")
    await tree.create("/b", b"0")
    written = asyncio.create_task(write_both(other, 60))
    looks = 0
    while not written.done():
        seen = Seen()
        base = int((await tree.get("/a", seen)).data)
        while not seen.changes:
            data = await tree.get("/b")  # written after /a: if it is newer, /a has changed
            assert int(data.data) <= base or seen.changes
            looks += 1
            if written.done():
                break
    await written
    assert looks > 0


async def write_both(tree, times):
    for number in range(1, times + 1):
        await tree.set("/a", b"%d" % number)
        await tree.set("/b", b"%d" % number)


@on_loop
async def test_a_change_by_another_process_is_seen_soon(room):
    tree = await room.tree()
    await tree.create("/n", b"0")
    seen = Seen()
    await tree.get("/n", seen)
    other = room.spawn("count", "/n", "1")
    await other.line()
    async with asyncio.timeout(20):
        await seen.change()


# -------------------------------------------------------------- address


@pytest.mark.parametrize("address", ["", "sqlite:", "etcd:localhost:2379", "zookeeper"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidConfigError, match="sqlite:PATH"):
        asyncio.run(open_tree(address, on_session=print))
