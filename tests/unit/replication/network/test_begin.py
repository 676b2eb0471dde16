"""`steps.begin`: a coroutine that waits for nothing needs no task; one that waits goes on as a task does."""

import asyncio

import pytest

from replication.network.steps import begin
from tests.support.site import on_loop


async def after(future, log):
    log.append("begun")
    try:
        return await future
    finally:
        log.append("ended")


def test_what_waits_for_nothing_is_returned():
    async def three():
        return 3

    assert begin(three()) == 3


def test_what_it_raises_before_it_waits_is_raised():
    async def wrong():
        raise KeyError("x")

    with pytest.raises(KeyError):
        begin(wrong())


@on_loop
async def test_it_has_begun_and_ends_with_what_it_waited_for():
    future, log = asyncio.get_running_loop().create_future(), []
    rest = begin(after(future, log))
    assert log == ["begun"]
    future.set_result(7)
    assert await rest == 7
    assert log == ["begun", "ended"]


@on_loop
async def test_an_error_that_it_waited_for_is_raised_in_it():
    future, log = asyncio.get_running_loop().create_future(), []
    rest = asyncio.ensure_future(begin(after(future, log)))
    future.set_exception(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        await rest
    assert log == ["begun", "ended"]


@on_loop
async def test_it_is_cancelled_where_it_waits():
    future, log = asyncio.get_running_loop().create_future(), []
    rest = asyncio.ensure_future(begin(after(future, log)))
    await asyncio.sleep(0)
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert future.cancelled()
    assert log == ["begun", "ended"]


@on_loop
async def test_it_is_cancelled_before_its_task_had_a_turn():
    """A lock that it holds is released at once, and not when garbage is collected."""
    future, log = asyncio.get_running_loop().create_future(), []
    rest = asyncio.ensure_future(begin(after(future, log)))
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert future.cancelled()
    assert log == ["begun", "ended"]


@on_loop
async def test_it_may_wait_more_than_once():
    async def twice():
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.001)
        return "done"

    assert await begin(twice()) == "done"
