"""Garbage: when the process of a broker looks for objects that hold each other and nobody else holds.

Python does so by itself in whatever makes objects, and goes through all that there are once many are new: beside a
request of 30,000 groups that is 170 ms in which nobody is served, several times. Here it goes through those that are
older than some thousand others at set times only, and each time through what is new since the last one. Nearly all
that a broker makes is freed without a search, when nobody holds it any more.
"""

from __future__ import annotations

import asyncio
import gc
import itertools

EVERY_S = 60.0
ALL_TURNS = 60  # every so many times, through all that there is
# A turn of the loop makes some thousand objects that live to its end. A search takes up to a millisecond, and ten.
YOUNG, MIDDLE = 5_000, 2
NEVER = 2**31 - 1


def begin() -> None:
    """Have Python search by itself among young objects only."""
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


async def search() -> None:
    """Search at set times, without an end. Objects that exist when this begins are taken for used for an hour."""
    gc.freeze()
    for turn in itertools.count(1):
        await asyncio.sleep(EVERY_S)
        collect(is_all=turn % ALL_TURNS == 0)


def collect(*, is_all: bool) -> None:
    """Free the garbage among what was made since the last time, or among all objects."""
    if is_all:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
