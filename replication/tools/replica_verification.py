"""All replicas of partitions are read beside each other, and compared, up to the high watermark."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from logstore.errors import InvalidRequestError, PylogError
from logstore.tools.topic_patterns import compiled
from replication.client.attempts import LOST, reason_of
from replication.client.cluster import Cluster
from replication.client.fetching import EARLIEST, LATEST
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import NO_LEADER
from replication.client.replicas import ReplicaRead, read_replica
from replication.client.settings import TOPIC_RESOURCE, describe_settings
from replication.client.topics import PartitionReplicas
from replication.model.cluster import TopicPartition
from replication.tools.replica_comparison import Finding, compare
from replication.tools.topics import partitions_of, selected

Row = dict[str, Any]
FETCH_BYTES, PARALLEL = 1024 * 1024, 8
_CLEANUP = "cleanup.policy"


class ReplicaVerification:
    """Compares the replicas of all partitions of the topics whose whole name `pattern` matches.

    Each of `parallel` partitions at a time holds about `fetch_bytes` of every replica, or a batch that is larger.

    Raises: InvalidRequestError: `pattern` is no regular expression.
    """

    def __init__(
        self, client: KafkaClient, pattern: str, *, fetch_bytes: int = FETCH_BYTES, parallel: int = PARALLEL
    ) -> None:
        self._pattern = compiled(pattern)
        self._client = client
        self._fetch_bytes, self._parallel = fetch_bytes, parallel
        self._positions: dict[tuple[str, TopicPartition], int] = {}

    def run(self) -> list[Row]:
        """Compare what is committed now, from where the last call found all replicas alike; a row for each partition.

        `lags`: how many committed records each replica lacks. `findings`: where a replica differs first, or cannot be
        read, and how. `bytes`: compared, of all replicas. Records that are deleted meanwhile are left out.

        Raises: InvalidRequestError: no topic matches; UnreachableError, KafkaError.
        """
        topics = {name: topic for name, topic in selected(self._client).items() if self._pattern.fullmatch(name)}
        if not topics:
            raise InvalidRequestError(f"no topic's name matches {self._pattern.pattern!r}")
        settings = self._client.run(describe_settings, TOPIC_RESOURCE, list(topics))
        partitions = {(topics[tp.topic].id, tp): known for tp, known in partitions_of(topics).items()}
        led = [tp for (_, tp), known in partitions.items() if known.leader != NO_LEADER]
        # In this order: what is deleted in between is left out, and what is committed then is on all replicas in sync.
        ends = self._client.offsets(dict.fromkeys(led, LATEST))
        starts = self._client.offsets(dict.fromkeys(led, EARLIEST))
        comparisons = []
        for key, known in partitions.items():
            tp = key[1]
            policy = settings[tp.topic][_CLEANUP].value if _CLEANUP in settings.get(tp.topic, {}) else None
            is_led = tp in starts
            start = max(starts[tp].offset, self._positions.get(key, 0)) if is_led else -1
            end = max(start, ends[tp].offset) if is_led else -1
            comparisons.append(_Comparison(tp, known, start, end, is_compacted="compact" in (policy or "")))
        self._client.run(self._all, comparisons)
        for key, comparison in zip(partitions, comparisons, strict=True):
            if comparison.end >= 0:
                self._positions[key] = comparison.sound_end
        return [comparison.row() for comparison in comparisons]

    async def _all(self, cluster: Cluster, comparisons: Collection[_Comparison]) -> None:
        turn = asyncio.Semaphore(self._parallel)

        async def one(comparison: _Comparison) -> None:
            async with turn:
                await comparison.run(cluster, self._fetch_bytes)

        async with asyncio.TaskGroup() as tasks:
            for comparison in comparisons:
                tasks.create_task(one(comparison))


class _Refused(NamedTuple):
    reason: str


class _Comparison:
    """The comparison of one partition's replicas, from `start` up to `end`; both -1 if nobody leads it."""

    def __init__(
        self, tp: TopicPartition, known: PartitionReplicas, start: int, end: int, *, is_compacted: bool
    ) -> None:
        self._tp, self._known, self._is_compacted = tp, known, is_compacted
        self._start = self._offset = start
        self.end = end
        self._bytes = 0
        self._findings: list[Finding] = []
        self._lags: dict[int, int] = {}
        others = (broker for broker in known.replicas if broker != known.leader)
        self._reading = [known.leader, *others] if end >= 0 else []  # the leader's is the one to compare with

    @property
    def sound_end(self) -> int:
        """All replicas hold the same up to here."""
        return min([self.end, *(each.offset for each in self._findings), *(self.end - n for n in self._lags.values())])

    def row(self) -> Row:
        if self.end < 0:
            self._findings = [Finding(NO_LEADER, -1, "nobody leads it: what is committed is not known")]
        lags = {broker: self._lags.get(broker, 0) for broker in self._known.replicas}
        return {
            **self._tp._asdict(),
            "replicas": self._known.replicas,
            "start": self._start,
            "end": self.end,
            "bytes": self._bytes,
            "lag": max(lags.values(), default=0),
            "lags": lags,
            "findings": [finding._asdict() for finding in self._findings],
        }

    async def run(self, cluster: Cluster, fetch_bytes: int) -> None:
        """Read and compare until the end; a replica that ends early, or has a finding, is read no further."""
        while self._offset < self.end and self._reading:
            asked = (self._ask(cluster, broker, fetch_bytes) for broker in self._reading)
            answers = dict(zip(self._reading, await asyncio.gather(*asked), strict=True))
            if not self._has_moved(answers):
                self._compare(answers)

    async def _ask(self, cluster: Cluster, broker: int, fetch_bytes: int) -> ReplicaRead | _Refused:
        try:
            return await read_replica(cluster, self._tp, broker, self._offset, fetch_bytes)
        except LOST as error:
            return _Refused(f"its broker does not answer: {reason_of(error)}")
        except PylogError as error:
            return _Refused(str(error))

    def _has_moved(self, answers: Mapping[int, ReplicaRead | _Refused]) -> bool:
        """Has a replica deleted what was to be compared? Then the comparison goes on where that one begins."""
        begins = [each.start for each in answers.values() if isinstance(each, ReplicaRead) and not each.records]
        if max(begins, default=-1) <= self._offset:
            return False
        self._offset = max(begins)
        return True

    def _compare(self, answers: Mapping[int, ReplicaRead | _Refused]) -> None:
        chunks = {}
        for broker, answer in answers.items():
            if isinstance(answer, _Refused):
                self._found(Finding(broker, self._offset, answer.reason))
            elif answer.error:
                self._found(Finding(broker, self._offset, f"its broker answers {answer.error}"))
            elif not answer.records:
                self._reading.remove(broker)  # its log ends here
                self._lags[broker] = self.end - self._offset
            else:
                chunks[broker] = answer.records
        if not chunks:
            return
        compared = compare(self._offset, self.end, chunks, is_compacted=self._is_compacted)
        for finding in compared.findings:
            self._found(finding)
        if compared.next_offset <= self._offset and not compared.findings:
            for broker in chunks:
                self._found(Finding(broker, self._offset, "its broker answers with what is before that offset"))
        self._bytes += sum(map(len, chunks.values()))
        self._offset = max(self._offset, compared.next_offset)

    def _found(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._reading.remove(finding.broker)
