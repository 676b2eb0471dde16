"""Cluster: requests to the brokers of a cluster, to the right one, repeated while that may help.

Laws: what a partition's leader refuses is asked of the leader that the brokers name next, until the time of the call
is over; then the last refusal is raised. A call never waits longer than its deadline for a broker that hangs: another
address is tried. An error that no repetition mends is raised at once. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Self

from logstore.env import SYSTEM
from logstore.errors import PylogError, UnknownPartitionError, UnknownTopicError
from replication.client.addresses import addresses_of
from replication.client.attempts import LOST, REFUSED_S, SILENT_S, Backoff, Failures, reason_of, unless_silent
from replication.client.coordinators import Coordinators
from replication.client.metadata import (
    NO_LEADER,
    ClusterMetadata,
    PartitionLeader,
    TopicMetadata,
    metadata_of,
    newer,
)
from replication.client.nearest import ReadReplicas
from replication.client.security import PLAINTEXT, Security
from replication.errors import ErrorCode, KafkaError, ProtocolError, code_in
from replication.model.cluster import TopicPartition
from replication.model.metadata import BrokerAddress
from replication.network.client import Client, Clients
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)


REQUEST_TIMEOUT_MS = 30_000  # of one attempt
# A topic that brokers do not know is asked for again for so long: one that was just made is not known everywhere.
UNKNOWN_TOPIC_S = 5.0
NEW_TOPIC_S = 1.0  # the same, of a topic that was never seen: a misspelt name fails soon
SLOW_S = 2.0  # a broker that takes longer to say what it knows is not waited for
# Time for one broker that is asked for metadata: one that hangs must not use up the time of the call.
METADATA_TIMEOUT_MS = 5_000

VERSIONS_REQUEST = {"client_software_name": "pylog", "client_software_version": "1"}

Partitions = Mapping[TopicPartition, Any]
# Versions of Metadata before which a Kafka is older, and what is not noticed then: docs/protocol.md has the whole list.
_LACKING = {
    7: "older than 2.1, it names no leader epochs: of what an unclean election cuts only a shorter log is noticed",
    10: "older than 2.8, it has no topic ids: a topic that was made again is noticed by its offsets only",
}


class UnreachableError(PylogError):
    """No broker answered; the message has every address and what went wrong there."""


class Cluster:
    """See the module. `timeout_ms` bounds a call with all its attempts; `rack`: see `nearest`.

    Every connection raises AuthenticationError, which ends the call at once.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "pylog",
        timeout_ms: int = 60_000,
        metadata_max_age_ms: int = 300_000,
        rack: str = "",
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap = addresses_of(bootstrap)
        self.timeout_ms, self.timeout_s = timeout_ms, timeout_ms / 1000
        self.request_timeout_ms = min(REQUEST_TIMEOUT_MS, timeout_ms)
        made = partial(Clients, client_id, timeout_ms=self.request_timeout_ms, security=security, asks_versions=True)
        self._clients = made()
        self._waiting = made()  # brokers answer a connection in order: a fetch that waits would hold up the others
        self.read_replicas = ReadReplicas(rack)
        self._max_age_s = metadata_max_age_ms / 1000
        self.coordinators = Coordinators(self._ask_coordinators, made(), timeout_s=self.timeout_s, where=self.where)
        self._cluster: ClusterMetadata | None = None
        self._topics: dict[str, tuple[float, TopicMetadata]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()
        await asyncio.sleep(0)  # transports end a turn later

    def close(self) -> None:
        """End every connection."""
        self._clients.close()
        self._waiting.close()
        self.coordinators.close()

    def backoff(self, at_most_s: float = float("inf")) -> Backoff:
        """The attempts of one call that begins now, for no longer than that."""
        return Backoff(min(self.timeout_s, at_most_s))

    # ------------------------------------------------------------------ metadata

    async def describe(self) -> ClusterMetadata:
        """The cluster, with every topic that may be seen."""
        answer = await self._ask_metadata(None)
        seen = {name: topic for name, topic in answer.topics.items() if topic.error is ErrorCode.NONE}
        return answer._replace(topics=seen)

    async def topic(self, name: str, *, is_fresh: bool = False, backoff: Backoff | None = None) -> TopicMetadata:
        """One topic; asked again if what is known is old, or `is_fresh`. `backoff`: as of `call_any`.

        Raises: UnknownTopicError, KafkaError (one that may not be seen).
        """
        now = asyncio.get_running_loop().time()
        known = self._topics.get(name)
        if known is not None and not is_fresh and now - known[0] < self._max_age_s:
            return known[1]
        backoff, patience = backoff or self.backoff(), now + min(UNKNOWN_TOPIC_S, self.timeout_s)
        while True:
            topic = (await self._ask_metadata([name], backoff)).topics.get(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
            if topic is not None and error is ErrorCode.NONE:
                return topic
            is_unknown = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            # A name that was never known is probably misspelt, and fails soon. A new topic reaches brokers one by one.
            late = patience if known is not None else min(patience, now + NEW_TOPIC_S)
            is_late = asyncio.get_running_loop().time() >= late and self._is_informed
            if is_unknown and (is_late or backoff.is_over):
                others = (await self.describe()).topics
                if name in others:  # it is new, and the metadata of this broker has it
                    return others[name]
                raise UnknownTopicError(name, others, f"the cluster at {self.where}")
            if not is_unknown and (not error.is_retriable or backoff.is_over):
                raise KafkaError(error, f"topic {name!r} at {self.where}")
            await backoff.wait()

    @property
    def _is_informed(self) -> bool:
        """True if the last answer had a controller: without one, a broker does not know its topics yet."""
        return self._cluster is not None and self._cluster.controller != NO_LEADER

    @property
    def where(self) -> str:
        """The bootstrap addresses, for messages."""
        return ",".join(f"{host}:{port}" for host, port in self._bootstrap)

    @property
    def metadata(self) -> ClusterMetadata | None:
        """The latest metadata of the cluster itself."""
        return self._cluster

    async def leader(self, tp: TopicPartition, backoff: Backoff | None = None) -> PartitionLeader:
        """The known leader of the partition. Raises: UnknownTopicError, UnknownPartitionError."""
        topic = await self.topic(tp.topic, backoff=backoff)
        if tp.partition not in topic.leaders:
            topic = await self.topic(tp.topic, is_fresh=True, backoff=backoff)
        if tp.partition not in topic.leaders:
            raise UnknownPartitionError(tp.topic, tp.partition, len(topic.leaders))
        return topic.leaders[tp.partition]

    def forget(self, topics: Iterable[str]) -> None:
        """Ask for these again when they are needed next."""
        for name in topics:
            if name in self._topics:
                self._topics[name] = (-self._max_age_s, self._topics[name][1])

    def learn(self, tp: TopicPartition, leader: PartitionLeader, address: BrokerAddress | None) -> None:
        """Believe a broker that names another leader of the partition, if that is a newer one; else ask again."""
        known = self._topics.get(tp.topic)
        if known is None or self._cluster is None:
            return
        if leader.broker == NO_LEADER or leader.epoch <= known[1].leaders.get(tp.partition, leader).epoch:
            self.forget([tp.topic])
            return
        self._topics[tp.topic] = known[0], known[1]._replace(leaders={**known[1].leaders, tp.partition: leader})
        if address is not None:
            self._cluster = self._cluster._replace(brokers={**self._cluster.brokers, address.id: address})

    async def _ask_metadata(self, names: Collection[str] | None, backoff: Backoff | None = None) -> ClusterMetadata:
        request = metadata_request(names)
        attempt_ms = min(self.request_timeout_ms, METADATA_TIMEOUT_MS)
        answer = await self.call_any(ApiKey.METADATA, request, backoff, timeout_ms=attempt_ms)
        if self._cluster is None:
            for lacks in (text for needed, text in _LACKING.items() if answer.__version__ < needed):
                logger.warning("the Kafka at %s is old: %s", self.where, lacks)
        answer = metadata_of(answer)
        now = asyncio.get_running_loop().time()
        for name, topic in answer.topics.items():
            if topic.error is ErrorCode.NONE:
                known = self._topics.get(name)
                self._topics[name] = (now, newer(known[1] if known else None, topic))
        self._cluster = answer
        return answer

    # --------------------------------------------------------------------- calls

    async def call(self, broker: int, key: ApiKey, request: Any, **bounds: Any) -> Any:
        """Ask this broker once. Raises: KafkaError (it is not known), and as `Client.call`."""
        return await (await self.connection(broker)).call(key, request, **bounds)

    async def connection(self, broker: int, *, waits: bool = False) -> Client:
        """The connection to a broker by its id, or that of requests which it answers late (`waits`).

        Raises: KafkaError: no broker of this id is known.
        """
        address = self._cluster.brokers.get(broker) if self._cluster else None
        if address is None:
            await self._ask_metadata([])
            address = self._cluster.brokers.get(broker) if self._cluster else None
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not known at {self.where}")
        return (self._waiting if waits else self._clients).at(address.host, address.port)

    async def call_leader(self, leader: int, topics: Collection[str], key: ApiKey, request: Any, **bounds: Any) -> Any:
        """Call a leader as `call` does, but give up a silent leader as soon as other brokers name a new one.

        A broker that hangs answers nothing, and its session ends long before a request does. `waits` among the bounds:
        as of `connection`.

        Raises: as `call`; OSError: the call was given up, with every other call that waits on that connection.
        """
        broker = await self.connection(leader, waits=bounds.pop("waits", False))
        known = {name: self._topics[name][1].leaders for name in topics if name in self._topics}
        led = {name: {p for p, each in leaders.items() if each.broker == leader} for name, leaders in known.items()}
        return await unless_silent(broker, broker.call(key, request, **bounds), lambda: self._is_replaced(leader, led))

    async def _is_replaced(self, leader: int, led: Mapping[str, Collection[int]]) -> bool:
        """Has any of these partitions another leader by now?"""
        try:
            answer = await self._ask_metadata(list(led))
        except PylogError:
            return False
        return any(
            known.broker not in (leader, NO_LEADER)
            for name, partitions in led.items()
            if name in answer.topics
            for p, known in answer.topics[name].leaders.items()
            if p in partitions
        )

    async def call_any(self, key: ApiKey, request: Any, backoff: Backoff | None = None, **bounds: Any) -> Any:
        """Ask whoever answers: brokers that are known, then the bootstrap addresses; again until the deadline.

        `backoff` is that of the call that this is a part of.

        Raises: UnreachableError, UnsupportedVersionError, AuthenticationError.
        """
        backoff = backoff or self.backoff()
        attempt_s = bounds.get("timeout_ms", self.request_timeout_ms) / 1000
        failures = Failures(was_reached=self._cluster is not None)
        while True:
            for host, port in self._candidates():
                by = asyncio.get_running_loop().time() + attempt_s  # with the opening of the connection
                try:
                    async with asyncio.timeout_at(min(backoff.deadline, by)):
                        return await self._clients.at(host, port).call(key, request, **bounds)
                except (*LOST, ProtocolError) as error:
                    failures.note(f"{host}:{port}", error, is_cut_short=backoff.is_over)
                if backoff.is_over:
                    break
            if not failures.are_final:
                await backoff.wait()
            if failures.are_final or backoff.is_over:
                within_s = REFUSED_S if failures.are_final else self.timeout_s
                raise UnreachableError(
                    f"no Kafka broker answered within {within_s:g} s: {failures}. Check the addresses, that the "
                    "brokers listen there, and security.protocol",
                    addresses=list(failures.reasons),
                )
            failures.say()

    async def call_controller(self, key: ApiKey, request: Any, code_of: Callable[[Any], ErrorCode]) -> Any:
        """The answer of the controller; asked again while it says, by `code_of` the answer, that another one is.

        Raises: UnreachableError, KafkaError: there was no controller until the deadline.
        """
        backoff = self.backoff()
        last: object = "no controller is known"
        while True:
            controller = (await self._ask_metadata([], backoff)).controller
            if controller != NO_LEADER:
                try:
                    async with asyncio.timeout_at(backoff.deadline):
                        answer = await self.call(controller, key, request)
                except (*LOST, KafkaError) as error:
                    last = error
                else:
                    if code_of(answer) is not ErrorCode.NOT_CONTROLLER:
                        return answer
                    last = ErrorCode.NOT_CONTROLLER
            await backoff.wait()
            if backoff.is_over:
                raise backoff.failure(key.name, last)

    async def call_informed(self, key: ApiKey, request: Any) -> Any:
        """The answer of the controller, which knows what was changed just now; if it does not answer, of any broker.

        Raises: as `call_any`.
        """
        with contextlib.suppress(*LOST, KafkaError):
            controller = (await self._ask_metadata([])).controller
            return await self.call(controller, key, request, timeout_ms=METADATA_TIMEOUT_MS)
        return await self.call_any(key, request, timeout_ms=METADATA_TIMEOUT_MS)

    async def call_each(
        self, brokers: Iterable[int], key: ApiKey, request: Any, backoff: Backoff, **bounds: Any
    ) -> list[Any]:
        """The answers of these brokers, or as a text why one has none. Raises: UnsupportedVersionError."""

        async def ask(broker: int) -> Any:
            try:
                async with asyncio.timeout_at(backoff.deadline):
                    answer = await self.call(broker, key, request, **bounds)
            except (*LOST, KafkaError) as error:
                return f"broker {broker}: {reason_of(error)}"
            code = code_in(answer) if hasattr(answer, "error_code") else ErrorCode.NONE
            return answer if code is ErrorCode.NONE else f"broker {broker}: {code.name}"

        return await asyncio.gather(*map(ask, brokers))

    async def until_all(
        self, key: ApiKey, request: Any, holds: Callable[[Any], bool], *, of: Collection[int] | None = None
    ) -> None:
        """Ask each of these brokers, or of all, until this holds of its answer, or it gives none, for some seconds.

        KRaft tells its brokers one after the other what was changed, and Metadata names any of them as controller.
        """

        async def ask(broker: int) -> None:
            attempts = self.backoff(UNKNOWN_TOPIC_S)
            while not attempts.is_over:
                (answer,) = await self.call_each([broker], key, request, self.backoff(SLOW_S))
                if isinstance(answer, str) or holds(answer):
                    return
                await attempts.wait()

        async def ask_quietly(broker: int) -> None:
            with contextlib.suppress(PylogError):  # it is no Kafka broker, or an older one: all is changed nevertheless
                await ask(broker)

        brokers = of or (await self._ask_metadata([])).brokers
        await asyncio.gather(*map(ask_quietly, brokers))

    async def _ask_coordinators(self, request: Any, backoff: Backoff | None) -> Any:
        attempt_ms = min(self.request_timeout_ms, METADATA_TIMEOUT_MS)
        return await self.call_any(ApiKey.FIND_COORDINATOR, request, backoff, timeout_ms=attempt_ms)

    def _candidates(self) -> list[tuple[str, int]]:
        known = [(b.host, b.port) for b in self._cluster.brokers.values()] if self._cluster else []
        SYSTEM.random.shuffle(known)
        all_of_them = dict.fromkeys((*known, *self._bootstrap))
        return sorted(all_of_them, key=lambda address: self._clients.at(*address).silent_s >= SILENT_S)


async def brokers_known_at(host: str, port: int, *, timeout_ms: int = 5_000) -> set[int]:
    """The ids of the brokers that this one knows; none if it does not answer."""
    connection = Client(host, port, "pylog", timeout_ms=timeout_ms, asks_versions=True)
    try:
        return set(metadata_of(await connection.call(ApiKey.METADATA, metadata_request([]))).brokers)
    except (*LOST, ProtocolError, KafkaError):
        return set()
    finally:
        connection.close()


def metadata_request(names: Collection[str] | None) -> dict[str, Any]:
    """Metadata of these topics; None: of all."""
    return {
        "topics": None if names is None else [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
