"""The events of a run that the laws cannot see in states: calls of drivers, and lines of the log."""

from __future__ import annotations

import gc
import logging
import random
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.log.holes import SegmentCopy
from logstore.store import disk_reserve
from replication.model.cluster import TopicPartition
from replication.protocol import bounds
from replication.replica.leader import guard
from replication.replica.machine import follower
from replication.replica.storage.blocked_time import BlockedTime
from replication.replica.storage.log_dir import ReplicaLogDir
from tests.sim.world import LIFE

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """`make` is given what was there."""
    right = owner.__dict__[name]
    setattr(owner, name, make(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextmanager
def observed(sim: Simulation) -> Any:
    """The laws hear of what is cut, filled and mended, before it is done or right after it."""

    def set_aside(right: Any) -> Any:
        def act(self: ReplicaLogDir, tp: TopicPartition, log: Any, offset: int) -> Any:
            if (seen := sim.here(tp)) is not None:
                sim.world.note(f"{seen.broker.id}: {tp} is cut at {offset} for its damage")
                sim.summary.cuts += 1
                sim.judge(sim.laws.cuts, seen, offset)
            return right(self, tp, log, offset)

        return act

    def note_mended(right: Any) -> Any:
        def act(self: ReplicaLogDir, tp: TopicPartition) -> None:
            right(self, tp)
            if (seen := sim.here(tp)) is not None:
                sim.laws.damaged.pop((seen.broker.id, tp), None)

        return act

    def put(right: Any) -> Any:
        def act(self: SegmentCopy) -> Any:
            sim.summary.fills += 1
            return right(self)

        return act

    def step(right: Any) -> Any:
        def act(state: follower.FollowerState, event: follower.Event) -> follower.Step:
            after, effects = right(state, event)
            for effect in effects:
                if isinstance(effect, follower.ReportLostRecords):
                    sim.judge(sim.laws.lost, sim.following(state), effect)
                elif isinstance(effect, follower.TruncateTo):
                    sim.world.note(f"{LIFE.get().host}: to be cut to {effect.offset}: {state}")
            return after, effects

        return act

    with (
        patched(ReplicaLogDir, "set_aside", set_aside),
        patched(ReplicaLogDir, "note_mended", note_mended),
        patched(SegmentCopy, "put", put),
        patched(follower, "step", step),
    ):
        yield


class _Lines(logging.Handler):
    """The log of brokers, for the reader of a broken run; an unforeseen error breaks the run."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(logging.INFO)
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get(None)
        if life is not None and life.is_over:
            return
        if record.levelno >= logging.WARNING:
            self._sim.world.note(f"{'' if life is None else life.host}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, PylogError | OSError | TimeoutError):
            self._sim.world.broken.append(error)


@contextmanager
def lines_noted(sim: Simulation) -> Any:
    lines, loggers = _Lines(sim), [logging.getLogger(name) for name in ("replication", "logstore", "asyncio")]
    before = [(each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.addHandler(lines)
        each.propagate = False
    try:
        yield
    finally:
        for each, (propagate, level) in zip(loggers, before, strict=True):
            each.removeHandler(lines)
            each.propagate = propagate
            each.setLevel(level)


@contextmanager
def small_and_the_same(seed: int) -> Any:
    """Directories that are cheap to copy, with names that are the same in each run of a seed; and no compiled code.

    No time passes in a thread, either: the real one would be looked up at each write.
    """
    dice, right = random.Random(seed), (uuid.uuid4, disk_reserve.RESERVE_BYTES, guard.LOOKS_BEFORE, BlockedTime.ms)
    uuid.uuid4 = lambda: uuid.UUID(int=dice.getrandbits(128), version=4)
    vars(SYSTEM.random).update(uniform=dice.uniform, shuffle=dice.shuffle)
    vars(SYSTEM.clock).update(now_ms=lambda: 1000)
    disk_reserve.RESERVE_BYTES, guard.LOOKS_BEFORE, BlockedTime.ms = 64, 1 << 60, lambda self: 0.0
    try:
        yield
    finally:
        vars(SYSTEM.random).clear()
        vars(SYSTEM.clock).clear()
        uuid.uuid4, disk_reserve.RESERVE_BYTES, guard.LOOKS_BEFORE, BlockedTime.ms = right


@contextmanager
def without_collection() -> Any:
    """The garbage of a run is looked for behind its end, and not in its midst, again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.enable()


def load_classes() -> None:
    """No request takes another way for being the first of its kind, whose class is not loaded yet."""
    bounds._UNLOADED.clear()
