"""The event loop of brokers and clients, and events in it."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where it is installed: it sends the parts of a request without a copy. Else Python's."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the event, for ever if no time is given; False: the time was over first."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
