"""Everything here runs on both event loops: Python's, and uvloop where it is installed."""

import asyncio

import pytest

from tests.support import peer


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def event_loop_of(request, monkeypatch):
    made = asyncio.new_event_loop
    if request.param == "uvloop":
        made = pytest.importorskip("uvloop").new_event_loop
    monkeypatch.setattr(peer, "new_event_loop", made)
