"""A burst of joins: how long it takes until all members of a new group of the consumer protocol have their partitions.

    python tests/benchmarks/bench_joins.py [--members 300] [--partitions 600] [--rounds 5]

All members join at once, and send a heartbeat twice a second then, over a connection each: on a broker of ours, and on
a real Kafka 4.4, which come in turns; the Kafka comes a second time in each round, as noise. The group is done when all
members are in one epoch, and hold all partitions, in numbers that differ by one at most. It needs Maven, and Java 17.
"""

import argparse
import asyncio
import itertools
import struct
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from replication.local_cluster import LocalCluster
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import build
from tests.benchmarks.harness import AGAIN, ratio, show
from tests.support.asker import Asker, until
from tests.support.kafka4 import Kafka4
from tests.support.kafka_answers.case import code
from tests.support.kafka_answers.topics import create, topic_id

HEARTBEAT, VERSION = ApiKey.CONSUMER_GROUP_HEARTBEAT, 1
EVERY_S, DONE_WITHIN_S = 0.5, 120
groups = itertools.count()


class Member:
    """One that takes in what it is told at once."""

    def __init__(self, number, group, topic, id_of_topic):
        self.name, self.group, self.topic, self.id_of_topic = f"m{number}", group, topic, id_of_topic
        self.epoch, self.held = 0, frozenset()

    async def run(self, address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        owned = ()
        with closing(writer):
            for number in itertools.count():
                body = {"group_id": self.group, "member_id": self.name, "member_epoch": self.epoch}
                body |= {"instance_id": None, "rebalance_timeout": -1, "topic_partitions": owned}
                if not self.epoch:
                    body |= {"rebalance_timeout": 60_000, "subscribed_topic_names": (self.topic,)}
                request = build(apis.request_class(HEARTBEAT, VERSION), body)
                writer.write(b"".join(map(bytes, apis.encode_request(HEARTBEAT, VERSION, number, "member", request))))
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                _, answer = apis.decode_response(HEARTBEAT, VERSION, memoryview(await reader.readexactly(size)))
                owned = self.heard(answer, owned)
                await asyncio.sleep(EVERY_S)

    def heard(self, answer, owned):
        """Return what the next heartbeat says that the member holds; None: as before."""
        if code(answer):
            return owned
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return None
        self.held = frozenset(number for row in answer.assignment.topic_partitions for number in row.partitions)
        return ({"topic_id": self.id_of_topic, "partitions": sorted(self.held)},) if self.held else ()


async def joined(address, topic, id_of_topic, given):
    """Return the seconds until a new group is done."""
    group = f"burst-{next(groups)}"
    members = [Member(number, group, topic, id_of_topic) for number in range(given.members)]
    begin = time.perf_counter()
    running = [asyncio.create_task(member.run(address)) for member in members]
    while True:
        await asyncio.sleep(0.01)
        for task in running:
            assert not task.done(), task.exception()
        held = [len(member.held) for member in members]
        is_level = sum(held) == given.partitions and max(held) - min(held) <= 1
        if is_level and len({member.epoch for member in members}) == 1:
            break
        assert time.perf_counter() - begin < DONE_WITHIN_S, f"{sum(held)} partitions are held"
    took = time.perf_counter() - begin
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return took


def prepared(address, given):
    """Make a topic, and the topic of committed offsets; return the first one's id."""
    with Asker(address) as asker:
        find = {"key_type": 0, "coordinator_keys": ["burst"]}
        until(lambda: code(asker.ask(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0]) == 0)
        until(lambda: create(asker, "topic", num_partitions=given.partitions) == [0])
        return until(lambda: topic_id(asker, "topic"))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--members", type=int, default=300)
    options.add_argument("--partitions", type=int, default=600)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as room, ExitStack() as ends:
        ours = ends.enter_context(LocalCluster(1)).bootstrap
        kafka = ends.enter_context(Kafka4(room, 1)).bootstrap
        ids = {address: prepared(address, given) for address in (ours, kafka)}
        found = {"ours": [], "peer": [], AGAIN: []}
        for at in range(given.rounds + 1):
            for name, took in found.items():
                address = ours if name == "ours" else kafka
                seconds = asyncio.run(joined(address, "topic", ids[address], given))
                if at:  # the first round warms up
                    took.append(seconds)
    times = [", ".join(f"{second:.2f}" for second in runs) for runs in found.values()]
    judged = ratio(found["ours"], found["peer"]), ratio(found[AGAIN], found["peer"])
    show(
        f"{given.members} members join a group at once, {given.partitions} partitions",
        ("until all have theirs, s", "pylog", "Kafka 4.4", "again", "ratio", "noise"),
        [["wall clock", *times, *judged]],
    )


if __name__ == "__main__":
    main()
