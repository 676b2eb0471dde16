"""Brokers without a controller: `ReplicaManager` over real sockets, logs and a tree; the test is the controller."""

import asyncio
import functools
from dataclasses import replace

from logstore.env import Env
from logstore.records.batch import Record, batches, build, records
from logstore.store.description import new_topic_id
from replication.broker.coordinators import Coordinators
from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.broker.handlers.fetch import FetchHandlers
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.produce import ProduceHandler
from replication.broker.needs import endpoints
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs
from replication.coordination import cluster, nodes, registration
from replication.coordination.sqlite_tree import SqliteTree
from replication.coordination.tree import ensure_path
from replication.errors import ErrorCode
from replication.model.cluster import BrokerInfo, LeaderAndIsr, TopicPartition, topic_uuid
from replication.network.server import Server
from replication.protocol import interbroker as ib
from replication.protocol.messages import FetchPartition
from replication.replica.manager import ReplicaManager
from tests.support.inside import storage

T0 = TopicPartition("orders", 0)
QUICK = {
    "replica.lag.time.max.ms": 1000,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 50,
    "num.io.threads": 2,
    "produce.base.offset.strict": "true",  # as Kafka: no test leans on what is forgiven
}


def on_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        async def timed():
            async with asyncio.timeout(120):
                await test(*args, **kwargs)

        asyncio.run(timed())

    return run


def batch(*values, **options):
    return build([Record(i, 1_000 + i, None, value) for i, value in enumerate(values)], **options)


def values_of(data):
    return [record.value for position, _ in batches(data) for record in records(data, position)]


async def until(condition, *, within_s=40.0):
    """Wait until it holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


def write_at_once(disk):
    """Have the event loop write small batches, however slow the disk of this machine is now."""

    def begin_write(queue):
        if queue.running or queue.waiting:
            return False
        disk._writing_since_ms = disk._clock.monotonic_ms()
        return True

    disk.begin_write = begin_write


def coordinators_of(broker):
    configs = GroupConfigs(broker.config)
    return Coordinators(broker.config, configs, broker.replicas, None, lambda: broker.tree, broker.env)  # no admin


class Broker:
    """One broker: what broker.py puts together, but for the controller and the clients."""

    def __init__(self, site, number, properties):
        self.site, self.id, self.port = site, number, 0
        self.env = Env()
        self.config = BrokerConfig.from_properties(
            {"broker.id": number, "log.dirs": str(site.path / f"broker-{number}"), **QUICK, **properties}
        )

    async def start(self, *, lost_writes=False):
        self.tree = await SqliteTree.open(self.site.path / "tree.db", on_session=lambda event: None)
        await cluster.prepare(self.tree)
        self.replicas = ReplicaManager(self.config, self.env)
        await self.replicas.open(self.tree)
        coordinators = coordinators_of(self)
        families = FetchHandlers(self.config, self.replicas, WrongEpochs()), PositionHandlers(self.replicas)
        handlers = {key: handler for f in families for key, handler in f.handlers().items()}
        turns = ProduceHandler(self.config, self.replicas, coordinators.verification).turns()
        self.server = Server(endpoints(handlers, turns, self.replicas.metadata))
        self.port = await self.server.start("127.0.0.1", self.port)
        if lost_writes is None:
            lost_writes = self.replicas.has_lost_writes
        info = BrokerInfo(self.id, -1, "127.0.0.1", self.port, lost_writes=lost_writes)
        self.epoch = await registration.register_broker(self.tree, info, now_ms=1, wait_ms=10_000)
        self.replicas.connect(self.tree, self.epoch)
        self.replicas.metadata.note_whole()  # the controller here only tells who leads
        return self

    async def stop(self):
        if self.replicas is not None:
            await self.server.close(grace_s=0.2)
            await self.replicas.close()
            await self.tree.close()
            self.replicas = None

    async def kill(self):
        """Leave everything like a killed process: nothing is flushed or noted, and the locks are gone."""
        replicas, self.replicas = self.replicas, None
        await self.server.close(grace_s=0)
        replicas._ticker.cancel()
        await replicas._maintenance.end()
        replicas.disconnect()
        await storage(replicas).disk.close()
        for partition in replicas.partitions().values():
            partition.replica.log.close()
        storage(replicas).dir.log_dir.close()
        await self.tree.close()

    @property
    def role(self):
        return self.replicas.partitions()[T0].role

    @property
    def end(self):
        return self.replicas.partitions()[T0].replica.end

    def stored(self, tp=T0):
        """The records in the log, committed or not."""
        log = self.replicas.partitions()[tp].replica.log
        data = log.read(log.log_start_offset, max_bytes=1 << 24).data if log.log_end_offset else b""
        return values_of(data)

    async def produce(self, *values, tp=T0, acks=-1, timeout_ms=5000, **options):
        found = await self.replicas.append({tp: batch(*values, **options)}, acks=acks, timeout_ms=timeout_ms)
        return found[tp]

    async def consume(self, offset=0, *, tp=T0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, **options):
        spec = FetchPartition(0, offset, 1 << 20)
        found = await self.replicas.fetch(
            {tp: spec}, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, **options
        )
        return found[tp]


class Site:
    """The brokers of one test, and the words of its controller."""

    def __init__(self, path):
        self.path = path
        self.brokers = {}
        self.topic_ids = {}
        self.states = {}
        self.replicas = {}
        self.controller_epoch = 0

    async def __aenter__(self):
        self.tree = await SqliteTree.open(self.path / "tree.db", on_session=lambda event: None)
        await cluster.prepare(self.tree)
        await self.begin_term(1)
        return self

    async def __aexit__(self, *error):
        for broker in list(self.brokers.values()):
            await broker.stop()
        await self.tree.close()

    async def begin_term(self, controller_epoch):
        """Be the controller, in this epoch."""
        await ensure_path(self.tree, nodes.CONTROLLER_EPOCH)
        await self.tree.set(nodes.CONTROLLER_EPOCH, b"%d" % controller_epoch)
        self.controller_epoch = controller_epoch

    async def start(self, *numbers, **properties):
        for number in numbers:
            broker = Broker(self, number, {k.replace("_", "."): v for k, v in properties.items()})
            self.brokers[number] = await broker.start()
        return [self.brokers[number] for number in numbers]

    async def create(self, tp=T0, *, replicas, isr=None, leader=None, config=None):
        """Make the partition in the tree, and tell its brokers."""
        isr = replicas if isr is None else isr
        self.topic_ids.setdefault(tp.topic, new_topic_id())
        await ensure_path(self.tree, nodes.topic_config_path(tp.topic))
        await self.tree.set(nodes.topic_config_path(tp.topic), nodes.encode_config(config or {}))
        await ensure_path(self.tree, nodes.topic_path(tp.topic))
        await self.tree.set(nodes.topic_path(tp.topic), nodes.encode_topic({tp.partition: tuple(replicas)}))
        await ensure_path(self.tree, nodes.topic_id_path(tp.topic))
        await self.tree.set(nodes.topic_id_path(tp.topic), self.topic_ids[tp.topic].encode())
        state = LeaderAndIsr(replicas[0] if leader is None else leader, 0, tuple(isr), self.controller_epoch)
        await ensure_path(self.tree, nodes.state_path(tp))
        self.replicas[tp] = tuple(replicas)
        await self.lead(tp, state, is_new=True)

    async def elect(self, leader, tp=T0, *, isr=None):
        """A new leader epoch."""
        stored = await self.stored(tp)
        after = replace(stored, leader=leader, leader_epoch=stored.leader_epoch + 1, isr=tuple(isr or stored.isr))
        await self.lead(tp, after)

    async def lead(self, tp, state, *, is_new=False):
        version = await self.tree.set(nodes.state_path(tp), nodes.encode_state(state))
        self.states[tp] = replace(state, version=version)
        for number in self.replicas[tp]:
            if number in self.brokers and self.brokers[number].replicas is not None:
                await self.tell(number, tp, is_new=is_new)

    async def tell(self, number, tp=T0, *, is_new=False, state=None, epoch=None):
        broker, state = self.brokers[number], state or self.states[tp]
        response = await broker.replicas.requests.obey(
            ib.LeaderAndIsrRequest(
                controller_id=0,
                controller_epoch=self.controller_epoch,
                broker_epoch=broker.epoch if epoch is None else epoch,
                topic_states=(
                    ib.LeaderAndIsrTopic(
                        topic_name=tp.topic,
                        topic_id=topic_uuid(self.topic_ids[tp.topic]),
                        partition_states=(
                            ib.LeaderAndIsrPartition(
                                partition_index=tp.partition,
                                controller_epoch=state.controller_epoch,
                                leader=state.leader,
                                leader_epoch=state.leader_epoch,
                                isr=state.isr,
                                zk_version=state.version,
                                replicas=self.replicas[tp],
                                is_new=is_new,
                            ),
                        ),
                    ),
                ),
                live_leaders=tuple(
                    ib.LiveLeader(broker_id=other.id, host_name="127.0.0.1", port=other.port)
                    for other in self.brokers.values()
                ),
            )
        )
        if response.error_code:
            return ErrorCode(response.error_code)
        return ErrorCode(response.topics[0].partition_errors[0].error_code)

    async def stop_replica(self, number, tp=T0, *, delete=True, leader_epoch=None):
        broker = self.brokers[number]
        if leader_epoch is None:
            leader_epoch = -2 if delete else -1
        state = ib.StopReplicaPartition(
            partition_index=tp.partition, leader_epoch=leader_epoch, delete_partition=delete
        )
        response = await broker.replicas.requests.obey(
            ib.StopReplicaRequest(
                controller_id=0,
                controller_epoch=self.controller_epoch,
                broker_epoch=broker.epoch,
                topic_states=(ib.StopReplicaTopic(topic_name=tp.topic, partition_states=(state,)),),
            )
        )
        return ErrorCode(response.error_code or response.partition_errors[0].error_code)

    async def stored(self, tp=T0):
        return (await cluster.read_states(self.tree, [tp]))[tp]


# A wait for a follower's next fetch is longer than a test.
PATIENT = {"replica_fetch_wait_max_ms": 60_000, "replica_lag_time_max_ms": 120_000}


async def with_three(site, *, lag_ms=120_000, **config):
    """Three replicas of one partition; who is slower than `lag_ms` leaves the ISR, on a busy machine anybody."""
    brokers = await site.start(1, 2, 3, replica_lag_time_max_ms=lag_ms)
    await site.create(replicas=(1, 2, 3), config=config)
    return brokers
