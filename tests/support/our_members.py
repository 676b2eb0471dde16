"""Members of our own client in a group that a coordinator divides, and the life of such a group on any brokers."""

import threading
from collections import Counter

import pyarrow as pa

from replication.errors import KafkaError
from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.commands import run_pylog

PARTITIONS = 6
WITHIN_S = 90


class Group:
    """The readers of partitions by what members were told; `twice` are those that had two readers at once.

    `gave` has a member's name for each partition that it gave up.

    A context manager: at its end the members leave, and raise what has ended one of them.
    """

    def __init__(self, client, topic, name):
        self.client, self.topic, self.name = client, topic, name
        self.lock, self.of, self.twice, self.gave = threading.Lock(), {}, [], []
        self.members, self.sent = {}, []
        self.is_shaken = False  # a broker was killed

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        failures = [failure for member in self.members.values() if (failure := member.left()) is not None]
        if failures and kind is None:
            raise failures[0]
        for failure in failures:
            print(f"a member ended: {failure!r}")

    def join(self, name, topics=None, **settings):
        self.members[name] = Member(self, name, topics or self.topic, settings)

    def counts(self):
        for member in self.members.values():
            if member.error is not None:
                raise member.error
        with self.lock:
            return sorted(Counter(self.of.values()).values())

    def seen(self):
        return Counter(value for member in self.members.values() for value in tuple(member.values))

    def append(self, count):
        new = [f"{len(self.sent) + number}".encode() for number in range(count)]
        self.client.append(self.topic, pa.table({"key": new, "value": new}))
        self.sent += new
        return new

    def all_is_read(self):
        until(lambda: set(self.sent) <= set(self.seen()), WITHIN_S, lambda: f"{len(set(self.seen()))} are read")

    def is_shared(self, *counts):
        until(lambda: self.counts() == sorted(counts), WITHIN_S, lambda: f"shared {counts}: {self.of}")

    def coordinator(self):
        names = {"key": self.name, "key_type": 0, "coordinator_keys": [self.name]}
        answer = self.client.run(lambda cluster: cluster.call_any(ApiKey.FIND_COORDINATOR, names))
        return answer.coordinators[0].node_id


class Member(threading.Thread):
    """It commits what it has read, batch by batch."""

    def __init__(self, group, name, topics, settings):
        super().__init__(daemon=True)
        self.group, self.name, self.values = group, name, []
        self.stopping, self.is_killed, self.error = threading.Event(), False, None
        self.consumer = group.client.consumer(
            topics, group.name, group_protocol="consumer", auto_offset_reset="earliest", enable_auto_commit=False,
            on_assign=self.take, on_revoke=self.give, **settings,
        )  # fmt: skip
        self.start()

    def take(self, tps):
        with self.group.lock:
            self.group.twice += [(tp, self.group.of[tp], self.name) for tp in tps if tp in self.group.of]
            self.group.of |= dict.fromkeys(tps, self.name)

    def give(self, tps):
        with self.group.lock:
            self.group.gave += [self.name] * len(tps)
            for tp in tps:
                if self.group.of.get(tp) == self.name:
                    del self.group.of[tp]

    def run(self):
        try:
            while not self.stopping.is_set():
                if (rows := self.consumer.poll(100)) is not None:
                    self.values += rows["value"].to_pylist()
                    self.commit()
            if not self.is_killed:
                self.consumer.close()
        except BaseException as error:  # noqa: BLE001  raised where the test looks
            self.error = error

    def commit(self):
        try:
            self.consumer.commit()
        except KafkaError:
            if not self.group.is_shaken:
                raise  # else it was too slow to find the next coordinator, and joins again

    def left(self):
        """Have it leave; return what has ended it, or None."""
        self.stopping.set()
        self.join(WITHIN_S)
        return TimeoutError(f"{self.name} does not leave") if self.is_alive() else self.error

    def leave(self):
        if (error := self.left()) is not None:
            raise error

    def kill(self):
        """It says no word any more."""
        self.is_killed = True
        self.leave()
        core = self.consumer._wrapped
        self.group.client.run(lambda _: core.member.stop())
        self.give(self.consumer.assignment)


def members_come_and_go(group, bootstrap):
    """Members join, one of them by a regular expression, read and leave: each record is read once."""
    group.append(300)
    group.join("a")
    group.is_shared(6)
    group.join("b", group_remote_assignor="uniform")
    group.is_shared(3, 3)
    group.join("c", f"^{group.topic}")
    group.is_shared(2, 2, 2)
    group.append(300)
    group.all_is_read()
    group.members["b"].leave()
    group.is_shared(3, 3)
    group.append(300)
    group.all_is_read()
    assert max(group.seen().values()) == 1
    assert group.twice == []
    is_described(group, bootstrap, members=2)


def is_described(group, bootstrap, *, members):
    """Our tool shows the group, its members and that nothing is left to read."""

    def rows():
        words = ("--group", group.name, "--output", "json", "--bootstrap-server", bootstrap)
        return run_pylog("groups", "describe", *words).ok().json

    def is_read():
        found = rows()
        return [row["lag"] for row in found] == [0] * PARTITIONS and len(
            {row["consumer_id"] for row in found}
        ) == members

    until(is_read, WITHIN_S, lambda: f"{rows()}")
    listed = run_pylog("groups", "list", "--output", "json", "--bootstrap-server", bootstrap).ok().json
    assert {"group": group.name, "state": "Stable", "protocol_type": "consumer", "type": "consumer"} in listed


def members_and_coordinators_die(group, kill):
    """A member falls silent, then the broker that coordinates the group is killed: all is read, by one at a time."""
    group.join("d")
    group.is_shared(2, 2, 2)
    group.members["a"].kill()
    group.append(300)
    group.is_shared(3, 3)
    group.all_is_read()
    assert max(group.seen().values()) == 1  # the silent one had committed what it had read
    before, group.is_shaken = group.coordinator(), True
    kill(before)
    group.append(300)
    group.all_is_read()
    group.join("e")
    group.is_shared(2, 2, 2)
    assert group.coordinator() != before
    group.append(300)
    group.all_is_read()
    assert group.twice == []
    assert not [value for value, times in group.seen().items() if times > 1 and value in group.sent[:1200]]
