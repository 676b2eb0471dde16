"""Metrics: the counts and measures of a broker, as a Prometheus page.

The names are those of Kafka's JMX exporter, and of kafka_exporter for topics and groups, so that their dashboards
work; `pylog_request_seconds` adds a true histogram. Everything but request times is read when the page is requested.
The coordinator of a group reports its lag, and asks the leaders for it; of a share group, each partition's share
coordinator does.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from replication.broker.coordinators import Coordinators
from replication.broker.families import Family, Labels, counter, gauge, text
from replication.broker.loop_watch import LoopWatch
from replication.broker.process_metrics import clients, process
from replication.controller.driver import ControllerLoop
from replication.coordinators.groups.kinds import AnyGroup
from replication.coordinators.share_state.machine.batches import NO_OFFSET
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import NO_LEADER, TopicPartition
from replication.model.metadata import Metadata
from replication.network.admission import Admission
from replication.protocol.apis import ApiKey
from replication.replica.leader.leader import Leader
from replication.replica.manager import ReplicaManager
from replication.replica.partition import Partition

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999)
RECENT_MAX = 1024  # requests per kind, for quantiles
REQUEST_LINES_MAX = 100
READ_TIMEOUT_S = 5.0
GROUPS_MAX, GROUP_OFFSETS_MAX = 5000, 50_000  # on the page; a metric tells how many groups are left out

Ends: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


class _Times:
    __slots__ = ("buckets", "recent", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0
        self.recent: deque[float] = deque(maxlen=RECENT_MAX)


class RequestTimes:
    """The times of requests, from their last byte to the answer, as the server reports them."""

    def __init__(self) -> None:
        self._times: dict[ApiKey, _Times] = {}

    def request_done(self, key: ApiKey, seconds: float) -> None:
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = _Times()
        times.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        times.sum_s += seconds
        times.recent.append(seconds)

    def families(self) -> Iterable[Family]:
        """Return them as counters, as quantiles of the last requests, and as a histogram."""
        counts = {key: sum(times.buckets) for key, times in self._times.items()}
        yield counter(
            "kafka_network_requestmetrics_requests",
            *(({"request": _name(key)}, count) for key, count in counts.items()),
        )
        yield gauge(
            "kafka_network_requestmetrics_totaltimems",
            *(
                (
                    {"request": _name(key), "quantile": quantile},
                    1000 * _quantile(sorted(times.recent), quantile),
                )
                for key, times in self._times.items()
                for quantile in QUANTILES
            ),
        )
        samples: list[tuple[str, Labels, float]] = []
        for key, times in self._times.items():
            for edge, count in zip([*BUCKETS_S, "+Inf"], itertools.accumulate(times.buckets), strict=True):
                samples.append(("_bucket", {"request": _name(key), "le": edge}, count))
            samples.append(("_sum", {"request": _name(key)}, times.sum_s))
            samples.append(("_count", {"request": _name(key)}, counts[key]))
        yield Family("pylog_request_seconds", "histogram", samples)


def _name(key: ApiKey) -> str:
    return "".join(part.capitalize() for part in key.name.split("_"))


def _quantile(found: Sequence[float], quantile: float) -> float:
    return found[min(len(found) - 1, int(quantile * len(found)))]


class Metrics:
    """The page of one broker. `ends` returns high watermarks of partitions that other brokers lead."""

    def __init__(
        self,
        replicas: ReplicaManager,
        controller: ControllerLoop,
        coordinators: Coordinators,
        ends: Ends,
        loop: LoopWatch,
        has_session: Callable[[], bool],
    ) -> None:
        self.admission: Admission | None = None  # while clients are served; the broker sets it
        self._loop = loop
        self._has_session = has_session
        self.times = RequestTimes()
        self._replicas = replicas
        self._controller = controller
        self._groups = coordinators.groups
        self._shares = coordinators.shares
        self._transactions = coordinators.transactions
        self._ends = ends

    async def page(self) -> str:
        families = [
            *self._traffic(),
            *self._replica_manager(),
            *self._partitions(),
            *self._controller_state(),
            *await self._disk(),
            *_topics(self._replicas.metadata),
            *self.times.families(),
            *process(),
            *(() if self.admission is None else clients(self.admission)),
            *self._open_transactions(),
            *await self._group_lag(),
        ]
        return text(families)

    # ------------------------------------------------------------------ brokers

    def _traffic(self) -> Iterable[Family]:
        counters = self._replicas.counters
        for name, value in (
            ("kafka_server_brokertopicmetrics_messagesin", counters.messages_in),
            ("kafka_server_brokertopicmetrics_bytesin", counters.bytes_in),
            ("kafka_server_brokertopicmetrics_bytesout", counters.bytes_out),
            ("kafka_server_brokertopicmetrics_replicationbytesin", counters.replication_bytes_in),
            ("kafka_server_brokertopicmetrics_replicationbytesout", counters.replication_bytes_out),
            ("kafka_server_followerreplication_bytes", counters.throttled_bytes_in),
            ("kafka_server_leaderreplication_bytes", counters.throttled_bytes_out),
            ("kafka_server_replicamanager_isrshrinks", counters.isr_shrinks),
            ("kafka_server_replicamanager_isrexpands", counters.isr_expands),
            ("kafka_server_replicamanager_failedisrupdates", counters.failed_isr_updates),
            ("pylog_lost_records", counters.lost_records),
            ("pylog_nonzero_base_offsets", counters.nonzero_base_offsets),
            ("pylog_failed_fetches", counters.failed_fetches),
            ("pylog_scrubbed_bytes", counters.scrubbed_bytes),
            ("pylog_scrub_passes", counters.scrub_passes),
            ("pylog_replica_repairs", counters.repairs),
            ("pylog_loop_stalls", self._loop.stalls),
        ):
            yield counter(name, ({}, value))
        yield counter(
            "kafka_network_requestmetrics_errors",
            *(
                ({"request": request, "error": ErrorCode(code).name}, count)
                for (request, code), count in counters.answered_errors.items()
            ),
        )
        yield gauge("pylog_damaged_replicas", ({}, self._replicas.damaged()))
        yield gauge("pylog_damaged_replicas_not_shown", ({}, self._replicas.not_shown()))
        yield gauge("pylog_coordination_session", ({}, self._has_session()))
        yield gauge("pylog_loop_lag_seconds", ({}, self._loop.lag_ms / 1000))
        yield gauge("pylog_loop_last_stall_seconds", ({}, self._loop.last_ms / 1000))
        yield gauge("pylog_loop_longest_stall_seconds", ({}, self._loop.longest_ms / 1000))

    def _led(self) -> list[tuple[TopicPartition, Partition, Leader]]:
        return [
            (tp, found, found.role)
            for tp, found in self._replicas.partitions().items()
            if isinstance(found.role, Leader)
        ]

    def _replica_manager(self) -> Iterable[Family]:
        states = [(role.state, partition.replica.config.min_insync_replicas) for _, partition, role in self._led()]
        for name, value in (
            ("leadercount", len(states)),
            ("partitioncount", len(self._replicas.partitions())),
            ("underreplicatedpartitions", sum(len(s.isr) < len(s.replicas) for s, _ in states)),
            ("underminisrpartitioncount", sum(len(s.isr) < least for s, least in states)),
            ("atminisrpartitioncount", sum(len(s.isr) == least for s, least in states)),
            ("offlinereplicacount", self._offline_count()),
        ):
            yield gauge(f"kafka_server_replicamanager_{name}", ({}, value))

    def _offline_count(self) -> int:
        offline = self._replicas.offline
        some = self._replicas.broken.keys() | offline.reasons.keys()
        return len(some if offline.everything is None else some | self._replicas.partitions().keys())

    async def _disk(self) -> Iterable[Family]:
        room = self._replicas.room
        usage = await asyncio.to_thread(room.usage)
        return (
            gauge("kafka_log_log_size", *((_of_directory(name), size) for name, size in usage.replica_bytes.items())),
            gauge("pylog_disk_log_bytes", ({}, usage.log_bytes)),
            gauge("pylog_disk_free_bytes", ({}, usage.free_bytes)),
            gauge("pylog_disk_total_bytes", ({}, usage.total_bytes)),
            gauge("pylog_disk_full", ({}, room.is_full)),
        )

    def _partitions(self) -> Iterable[Family]:
        led = [(_of(tp), partition.replica, role.state) for tp, partition, role in self._led()]
        isr = [(labels, len(state.isr)) for labels, _, state in led]
        under = [(labels, len(state.isr) < len(state.replicas)) for labels, _, state in led]
        replicas = [(labels, len(state.replicas)) for labels, _, state in led]
        logs = [(_of(tp), found.replica) for tp, found in self._replicas.partitions().items()]
        for name, samples in (
            ("kafka_cluster_partition_underreplicated", under),
            ("kafka_cluster_partition_insyncreplicascount", isr),
            ("kafka_cluster_partition_replicascount", replicas),
            ("kafka_topic_partition_in_sync_replica", isr),
            ("kafka_topic_partition_under_replicated_partition", under),
            ("kafka_topic_partition_replicas", replicas),
            ("kafka_topic_partition_current_offset", [(tp, state.high_watermark) for tp, _, state in led]),
            ("kafka_topic_partition_oldest_offset", [(tp, log.start) for tp, log, _ in led]),
            ("kafka_log_log_logstartoffset", [(tp, log.start) for tp, log in logs]),
            ("kafka_log_log_logendoffset", [(tp, log.end) for tp, log in logs]),
            ("pylog_log_recovery_point", [(tp, log.log.point.offset) for tp, log in logs]),
            ("kafka_log_log_numlogsegments", [(tp, len(log.log.files.view.bases)) for tp, log in logs]),
        ):
            yield gauge(name, *samples)

    def _controller_state(self) -> Iterable[Family]:
        state, active = self._controller.state, self._controller.is_active
        name = "kafka_controller_kafkacontroller"
        yield gauge(f"{name}_activecontrollercount", ({}, active))
        if not active:
            return
        assigned = {
            TopicPartition(topic, number): replicas
            for topic, info in state.topics.items()
            for number, replicas in info.replicas.items()
        }
        led = {tp: state.leadership[tp].leader for tp in assigned if tp in state.leadership}
        for what, value in (
            ("offlinepartitionscount", sum(led.get(tp, NO_LEADER) not in state.brokers for tp in assigned)),
            ("preferredreplicaimbalancecount", sum(led.get(tp) != row[0] for tp, row in assigned.items())),
            ("globaltopiccount", len(state.topics)),
            ("globalpartitioncount", len(assigned)),
            ("activebrokercount", len(state.brokers)),
        ):
            yield gauge(f"{name}_{what}", ({}, value))
        yield counter(
            "kafka_controller_controllerstats_uncleanleaderelections",
            ({}, self._controller.unclean_elections),
        )

    # ------------------------------------------------------------------- groups

    def _open_transactions(self) -> Iterable[Family]:
        """Readers of committed data wait for the oldest one."""
        try:
            ages_ms = self._transactions.open_ages_ms()
        except KafkaError:
            return  # they are loading
        yield gauge("pylog_open_transactions", ({}, len(ages_ms)))
        yield gauge("pylog_oldest_open_transaction_seconds", ({}, max(ages_ms, default=0) / 1000))

    async def _group_lag(self) -> Sequence[Family]:
        try:
            all_groups = self._groups.groups()
        except KafkaError:
            return ()  # they are loading
        offsets = 0
        groups: list[AnyGroup] = []
        for group in all_groups:
            offsets += len(group.offsets.committed)
            if len(groups) < GROUPS_MAX and offsets <= GROUP_OFFSETS_MAX:
                groups.append(group)
        committed = [(group.id, tp, found.offset) for group in groups for tp, found in group.offsets.committed.items()]
        shared = self._shared()[: max(GROUP_OFFSETS_MAX - len(committed), 0)]
        ends = await self._high_watermarks({tp for _, tp, _ in committed} | {tp for _, tp, _, _ in shared})
        rows = [({"consumergroup": name, **_of(tp)}, offset, ends.get(tp)) for name, tp, offset in committed]
        lags = [(labels, max(end - offset, 0)) for labels, offset, end in rows if end is not None]
        starts = [({"consumergroup": name, **_of(tp)}, start) for name, tp, start, _ in shared]
        left = [
            ({"consumergroup": name, **_of(tp)}, max(ends[tp] - start - done, 0))
            for name, tp, start, done in shared
            if tp in ends
        ]
        sums: Counter[tuple[object, object]] = Counter()
        for labels, lag in lags:
            sums[labels["consumergroup"], labels["topic"]] += lag
        return (
            gauge("kafka_consumergroup_members", *(({"consumergroup": g.id}, len(g.members)) for g in groups)),
            gauge("pylog_consumergroups_left_out", ({}, len(all_groups) - len(groups))),
            gauge("kafka_consumergroup_current_offset", *((labels, offset) for labels, offset, _ in rows), *starts),
            gauge("kafka_consumergroup_lag", *lags, *left),
            gauge(
                "kafka_consumergroup_lag_sum",
                *(({"consumergroup": name, "topic": topic}, lag) for (name, topic), lag in sums.items()),
            ),
        )

    def _shared(self) -> list[tuple[str, TopicPartition, int, int]]:
        """Return where share groups begin in partitions whose states are kept here, and the records done behind it."""
        try:
            stored = self._shares.stored()
        except KafkaError:
            return []  # they are loading
        named = ((key, found, self._replicas.metadata.name_of(key.topic_id)) for key, found in stored)
        return [
            (key.group_id, TopicPartition(name, key.partition), found.start_offset, found.delivery_complete_count)
            for key, found, name in named
            if name is not None and found.start_offset != NO_OFFSET
        ]

    async def _high_watermarks(self, tps: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        mine = {tp: role.high_watermark for tp, _, role in self._led() if tp in tps}
        others = sorted(tps - mine.keys())
        return {**mine, **(await self._ends(others) if others else {})}


def _topics(metadata: Metadata) -> Iterable[Family]:
    brokers, topics = metadata.brokers(), metadata.topics().values()
    yield gauge("kafka_brokers", ({}, len(brokers)))
    offline = sum(p.state.leader not in brokers for t in topics for p in t.partitions.values())
    yield gauge("pylog_offline_partitions", ({}, offline))  # by every broker that knows, the controller or not
    yield gauge("kafka_topic_partitions", *(({"topic": t.name}, len(t.partitions)) for t in topics))
    known = [(_of(TopicPartition(t.name, p)), found) for t in topics for p, found in t.partitions.items()]
    yield gauge("kafka_topic_partition_leader", *((labels, found.state.leader) for labels, found in known))
    yield gauge(
        "kafka_topic_partition_leader_is_preferred",
        *((labels, found.state.leader == found.replicas[0]) for labels, found in known),
    )


def _of_directory(name: str) -> dict[str, object]:
    topic, _, partition = name.rpartition("-")
    return {"topic": topic, "partition": partition}


def _of(tp: TopicPartition) -> dict[str, object]:
    return {"topic": tp.topic, "partition": tp.partition}


class MetricsEndpoint:
    """Answers GET /metrics and nothing else, one request per connection."""

    def __init__(self, page: Callable[[], Awaitable[str]]) -> None:
        self._page = page
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        self._listener = await asyncio.start_server(self._serve, host, port)
        chosen: int = self._listener.sockets[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                asked = await reader.readline()
                for _ in range(REQUEST_LINES_MAX):
                    if (await reader.readline()).strip() == b"":
                        break
                is_known = asked.startswith((b"GET /metrics ", b"GET /metrics?"))
                body = (await self._page()).encode() if is_known else b"the metrics are at /metrics\n"
                status = b"200 OK" if is_known else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)
                )
                await writer.drain()
        except (OSError, TimeoutError, ValueError):  # a peer that is gone, slow, or sends no lines
            pass
        finally:
            writer.close()
