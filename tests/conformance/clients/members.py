"""A member of a consumer group by each client, in a thread of its own: reads until it is told to stop.

`partitions` is what it is assigned, `records` the (partition, offset, value) that it was given, `changes` counts its
assignments. Offsets are committed when partitions are given up, and at the end.
"""

import asyncio
import gc
import io
import logging
import threading
import time
import warnings

import confluent_kafka
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    import kafka
    import kafka.errors

SESSION_MS = 6000
STOPS_WITHIN_S = 120  # on a machine that has other things to do
# Log records of a broker's death hold on to their sockets, as long as pytest keeps the log of a test.
for client in ("kafka", "aiokafka"):
    logging.getLogger(client).setLevel(logging.CRITICAL)


# kafka-python 3.0.12 raises these when a broker dies: it trips over its own metadata; or it cannot ask for its
# coordinator, waits for metadata, and the broker that it asked for that is the dead one, too.
STUMBLES = (kafka.errors.UnknownBrokerIdError, kafka.errors.KafkaConnectionError)


class Member:
    def __init__(self, bootstrap, group, topic, *, instance=None, cooperative=False):
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.instance, self.cooperative = instance, cooperative
        self.partitions: set[int] = set()
        self.records: list[tuple[int, int, bytes]] = []
        self.changes = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self):
        """Leave the group in good order."""
        self._stop.set()
        self._thread.join(STOPS_WITHIN_S)
        assert not self._thread.is_alive(), f"it did not stop: {self.waits_for()}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of sockets that kafka-python forgets when one is lost
            gc.collect()
        if self.error is not None:
            raise self.error

    def waits_for(self):
        """Return the stacks of its tasks, if it has some."""
        return ""

    def _guarded(self):
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  it is raised where the test stops it
            self.error = error
        finally:
            self.partitions = set()

    def note_assigned(self, partitions):
        self.partitions = set(partitions)
        self.changes += 1


class Confluent(Member):
    def run(self):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 500,
                "partition.assignment.strategy": "cooperative-sticky" if self.cooperative else "range",
                **({"group.instance.id": self.instance} if self.instance else {}),
            }
        )

        def on_assign(consumer, partitions):
            self.note_assigned((self.partitions if self.cooperative else set()) | {p.partition for p in partitions})

        def on_revoke(consumer, partitions):
            self.partitions = self.partitions - {p.partition for p in partitions}

        consumer.subscribe([self.topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.records.append((message.partition(), message.offset(), message.value()))
        finally:
            consumer.close()


class KafkaPython(Member):
    def run(self):
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=500,
            **({"group_instance_id": self.instance} if self.instance else {}),
        )
        member = self

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned):
                member.note_assigned(tp.partition for tp in assigned)

            def on_partitions_revoked(self, revoked):
                member.partitions = set()

        consumer.subscribe([self.topic], listener=Listener())
        # kafka-python 3.0.12 joins before it knows the topic's partitions, joins again when it does, and forgets the
        # answer for good when a poll that timed out meanwhile is followed by one after it: whatever the broker.
        knows = False
        try:
            while not self._stop.is_set():
                try:
                    knows = knows or bool(consumer.partitions_for_topic(self.topic))
                    found = consumer.poll(timeout_ms=100) if knows else {}
                except STUMBLES:
                    continue  # the next poll goes on
                for rows in found.values():
                    self.records += [(row.partition, row.offset, row.value) for row in rows]
        finally:
            consumer.close()


class Aiokafka(Member):
    def run(self):
        asyncio.run(self._run())

    def waits_for(self):
        text = io.StringIO()
        for task in asyncio.all_tasks(self.loop):
            task.print_stack(file=text)
        return text.getvalue()

    async def _run(self):
        self.loop = asyncio.get_running_loop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=500,
            partition_assignment_strategy=(RangePartitionAssignor,),
            **({"group_instance_id": self.instance} if self.instance else {}),
        )
        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned):
                member.note_assigned(tp.partition for tp in assigned)

            def on_partitions_revoked(self, revoked):
                member.partitions = set()

        consumer.subscribe([self.topic], listener=Listener())
        try:
            await consumer.start()
            while not self._stop.is_set():
                for rows in (await consumer.getmany(timeout_ms=100)).values():
                    self.records += [(row.partition, row.offset, row.value) for row in rows]
        finally:
            await consumer.stop()


CLIENTS = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


def until(condition, what, *arguments, within_s=30.0):
    """Wait until it holds; `what` says what did not, or is asked then."""
    end = time.monotonic() + within_s
    while not condition(*arguments):
        assert time.monotonic() < end, f"not within {within_s:g} s: {what() if callable(what) else what}"
        time.sleep(0.02)
