"""LocalCluster: its brokers, what it knows, and the faults that tests bring about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from logstore.env import SYSTEM
from logstore.errors import UnknownPartitionError, UnknownTopicError
from replication.local_cluster import description, process
from replication.local_cluster.brokers import POLL_MS, Brokers
from replication.local_cluster.description import ClusterDescription, in_thread
from replication.local_cluster.process import LocalClusterError
from replication.model.cluster import BrokerId, TopicPartition


class LocalCluster(Brokers):
    """See the package. `pause` and `partition` end with their `with` block; `mend` ends all faults."""

    def describe(self) -> ClusterDescription:
        return description.describe(self.coordination)

    def leaderless(self, broker: BrokerId) -> int:
        """Return how many partitions with a replica on this broker have no leader that is up, now that it is not."""
        found = self.describe()
        up = found.brokers.keys() - {broker}
        return sum(state.leader not in up for state in found.states_on(broker))

    def not_in_sync(self, broker: BrokerId) -> int:
        """Return how many partitions this broker, which is up, will be in sync with: it has to copy, or to be elected.

        A partition that waits for another broker does not count.
        """
        found = self.describe()
        return sum((broker in state.isr) is not (state.leader in found.brokers) for state in found.states_on(broker))

    def missing(self) -> list[BrokerId]:
        """Return the brokers with partitions that are neither in this cluster nor, started elsewhere, up."""
        return in_thread(description.missing(self.coordination, set(self._brokers)))

    def leader(self, topic: str, partition: int = 0) -> BrokerId:
        """Return the leader of the partition, one that is up: while there is none, wait for its election.

        Raises: UnknownTopicError, UnknownPartitionError; LocalClusterError: nobody is elected within 30 s.
        """
        end_ms = SYSTEM.clock.monotonic_ms() + process.READY_TIMEOUT_S * 1000
        while SYSTEM.clock.monotonic_ms() < end_ms:
            found = self.describe()
            if topic not in found.topics:
                raise UnknownTopicError(topic, found.topics, self.bootstrap)
            if partition not in found.topics[topic].partitions:
                raise UnknownPartitionError(topic, partition, len(found.topics[topic].partitions))
            state = found.leadership.get(TopicPartition(topic, partition))
            if state is not None and state.leader in self.live:
                return state.leader
            self._is_over.wait(POLL_MS / 1000)
        raise LocalClusterError(f"{topic}-{partition} has no leader that is up after {process.READY_TIMEOUT_S:g} s")

    def kill_leader(self, topic: str, partition: int = 0) -> BrokerId:
        """Kill the leader of the partition by SIGKILL; return its id. Another one leads after its session timeout.

        Raises: as `leader`.
        """
        leader = self.leader(topic, partition)
        self.kill(leader)
        return leader

    def partition(self, *sides: BrokerId | Iterable[BrokerId]) -> ExitStack:
        """Cut brokers off from each other, at once. The result, as a context manager, heals the network at its end.

        `partition(1)` cuts off broker 1 from all others, `partition([1, 2], [3])` brokers 1 and 2 from 3; brokers that
        are not named are one side more. Connections between the sides end, and attempts to connect get no answer.
        Clients and the coordination store still reach every broker, so no session ends: a leadership that the
        controller hands to a broker which it cannot reach waits for the end. This replaces an earlier partition.

        Raises: LocalClusterError: no such broker, a broker on two sides, one that is paused.
        """
        named = [[side] if isinstance(side, int) else list(side) for side in sides]
        self._chosen(broker for side in named for broker in side)
        side_of = dict.fromkeys(self._brokers, -1) | {broker: n for n, side in enumerate(named) for broker in side}
        if len(set(side_of.values())) < 2 or sum(map(len, named)) > len({broker for side in named for broker in side}):
            raise LocalClusterError(
                f"partition{sides}: name brokers of {sorted(self._brokers)}, each on one side of two"
            )
        self._cut_off({b: {other for other in side_of if side_of[other] != side_of[b]} for b in side_of})
        healed = ExitStack()
        healed.callback(self.heal)
        return healed

    def heal(self) -> None:
        """End the partition; return when all running brokers know each other."""
        self._cut_off({})
        self.wait_until_known()

    def mend(self) -> None:
        """Resume the paused brokers, heal the network, start what is not up; return when all know each other."""
        self.resume(*self._brokers)
        self._cut_off({})
        self.restart(*(self._brokers.keys() - set(self.live)))

    def _cut_off(self, others: Mapping[BrokerId, Iterable[BrokerId]]) -> None:
        for broker in self.live:
            addresses = {
                address for other in others.get(broker, ()) if (address := self._of(other).address) is not None
            }
            each = self._of(broker)
            if addresses != each.unreachable:
                each.cut_off(addresses)
