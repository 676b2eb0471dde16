"""Waiting for what must not happen: there is no moment at which it is over, so that it is looked at all the time."""

import asyncio
import time

LOOK_S = 0.01


async def stays(condition, for_s):
    """Assert that the condition holds, and goes on to hold for so long."""
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        assert condition()
        await asyncio.sleep(LOOK_S)
    assert condition()


def remains(condition, for_s):
    """Assert the same without an event loop."""
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        assert condition()
        time.sleep(LOOK_S)
    assert condition()
