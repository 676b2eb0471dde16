"""Exploration of `epochs`: every world that can come of one, each judged by the laws of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from logstore.records.marker import Marker
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.state import Phase
from tests.sim import epochs
from tests.sim.epochs import Answer, Ask, Batch, Mark, Step, World, states_of


class Explored(NamedTuple):
    worlds: int
    ends: int


def explore(start: World, records: int) -> Explored:
    """Look at every world that can come of this one. Raises: AssertionError: a law is broken, with the way there."""
    numbers, worlds, ends = {start: 0}, [start], []
    came: list[tuple[int, Step]] = [(-1, ())]
    before: list[list[int]] = [[]]
    for number, world in enumerate(worlds):  # those that are found on the way, too
        try:
            following = list(epochs.steps(world, records))
            if not following and world.known.phase is Phase.ONGOING:
                following = [(("times out at last",), epochs.post(world, events.Ticked(), epochs.LATER_MS))]
            if not following:
                ends.append(number)
                judge_end(world, records)
            if world.left:
                following += epochs.deaths(world._replace(left=world.left - 1), records)
            for label, made in following:
                found = numbers.setdefault(made := _tidy(made), len(worlds))
                if found == len(worlds):
                    worlds.append(made)
                    came.append((number, label))
                    before.append([])
                    judge(made)
                before[found].append(number)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{_way(worlds, came, number)}") from error
    reached, queue = set(ends), list(ends)
    while queue:
        fresh = set(before[queue.pop()]) - reached
        reached |= fresh
        queue += fresh
    for number in range(len(worlds)):
        assert number in reached, f"it never ends\n{_way(worlds, came, number)}"
    return Explored(len(worlds), len(ends))


def _tidy(world: World) -> World:
    """Leave out answers that nobody waits for, and never will."""
    client = world.client
    idle = {
        message
        for message in world.messages
        if type(message) is Answer
        and (
            message.to not in client.unacked
            if (kind := type(message.to)) is Batch
            else message.to.marker.coordinator_epoch != world.life
            if kind is Mark
            else message.to.is_late or message.to.life != world.leaders[message.to.partition].life
            if kind is Ask
            else message.to != client.asked
        )
    }
    return world._replace(messages=world.messages - idle) if idle else world


def _way(worlds: Sequence[World], came: Sequence[tuple[int, Step]], number: int) -> str:
    labels, at = [str(worlds[number])], number
    while at > 0:
        at, label = came[at]
        labels.append(" ".join(map(str, reversed(label))))
    return "\n".join(reversed(labels))


# --- laws


@lru_cache(maxsize=100_000)
def _committed(log: tuple[Batch | Marker, ...]) -> tuple[tuple[int, int], ...]:
    """Return the committed (transaction, place) of a log. Raises: AssertionError: a record is behind its marker."""
    found, opened, ended = [], [], set()
    for row in log:
        if isinstance(row, Batch):
            assert row.number not in ended, f"{row} came behind its marker"
            opened.append((row.number, row.place))
            continue
        if row.commits:
            found += opened
        ended |= {number for number, _ in opened}
        opened = []
    assert found == sorted(set(found)), f"not in order, or twice: {found}"
    return tuple(found)


def judge(world: World) -> None:
    """Assert the laws of any time."""
    outcomes = dict(enumerate(world.client.outcomes))
    for leader in world.leaders:
        for number, place in _committed(leader.log):
            assert outcomes.get(number) != "aborted", f"{number, place} was aborted, and is read"


def judge_end(world: World, records: int) -> None:
    """Assert the laws of a world in which nothing more happens."""
    client = world.client
    assert client.number == len(world.fates), f"the client waits for {client.asked or client.unacked}"
    found = [row for leader in world.leaders for row in _committed(leader.log)]
    for leader in world.leaders:
        assert not states_of(leader.log).open_transactions(), "a transaction stays open"
    for number, outcome in enumerate(client.outcomes):
        there = sum(row[0] == number for row in found)
        wanted = {"committed": (records,), "aborted": (0,), "unknown": (0, records)}[outcome]
        assert there in wanted, f"{number} is {outcome}, and has {there} of {records}"
    if not world.is_disturbed:
        assert "".join(outcome[0] for outcome in client.outcomes) == world.fates
