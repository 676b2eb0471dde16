"""The event loop of brokers and clients."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where it is installed: it sends the parts of a request without a copy. Else Python's."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
