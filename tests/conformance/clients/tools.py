"""The client of the tests, with each of the four. Every one of them is as it is installed, unmodified."""

import asyncio
import shutil
import subprocess
import warnings

import aiokafka
import confluent_kafka
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    import kafka

PATIENCE_S = 30


class Tool:
    """`produce` writes values to one partition in their order; `consume` reads (offset, time in ms, value)."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        pass


class Kcat(Tool):
    def __init__(self, bootstrap):
        if shutil.which("kcat") is None:
            pytest.skip("kcat is not installed: apt install kcat")
        super().__init__(bootstrap)

    def run(self, *arguments, given=""):
        command = ["kcat", "-b", self.bootstrap, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, (command, done.stderr)
        assert "NOTICE" not in done.stderr, done.stderr  # such as: compression not supported by the broker
        return done.stdout

    def produce(self, topic, values, *, codec="none", acks="all", partition=0, idempotent=False):
        options = {"acks": acks, "enable.idempotence": str(idempotent).lower(), "linger.ms": 50}
        settings = [word for key, text in options.items() for word in ("-X", f"{key}={text}")]
        if idempotent:  # it wants the settings that go with it
            settings += ["-X", "retries=100"]
        self.run("-P", "-t", topic, "-p", str(partition), "-z", codec, *settings, given="\n".join(values))

    def consume(self, topic, count, *, partition=0, offset=0):
        words = ["-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-q"]
        lines = self.run("-C", *words, "-f", "%o %T %s\n").splitlines()
        return [(int(at), int(ms), value) for at, ms, value in (line.split(" ", 2) for line in lines)]

    def offset_at(self, topic, partition, timestamp_ms):
        text = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        return int(text.strip().rpartition(" ")[2])


class Confluent(Tool):
    def __init__(self, bootstrap):
        super().__init__(bootstrap)
        self.config = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.consumer = confluent_kafka.Consumer(
            {**self.config, "group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )

    def close(self):
        self.consumer.close()

    def produce(self, topic, values, *, codec="none", acks="all", partition=0, times=None, idempotent=False):
        options = {"compression.type": codec, "acks": acks, "enable.idempotence": idempotent, "linger.ms": 50}
        if not idempotent:  # a new topic has no leader yet at first: what is sent again must not be overtaken
            options["max.in.flight"] = 1
        producer, failed = confluent_kafka.Producer({**self.config, **options}), []
        for number, value in enumerate(values):
            producer.produce(
                topic, value, partition=partition, timestamp=times[number] if times else 0,
                on_delivery=lambda error, message: error and failed.append(error),
            )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0
        assert not failed, failed

    def consume(self, topic, count, *, partition=0, offset=0):
        self.consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        found = []
        while len(found) < count:
            message = self.consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} of {count}"
            assert message.error() is None, message.error()
            found.append((message.offset(), message.timestamp()[1], message.value().decode()))
        self.consumer.unassign()
        return found

    def offset_at(self, topic, partition, timestamp_ms):
        asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
        if timestamp_ms < 0:
            low, high = self.consumer.get_watermark_offsets(asked, PATIENCE_S)
            return {-1: high, -2: low}[timestamp_ms]
        return self.consumer.offsets_for_times([asked], PATIENCE_S)[0].offset


class KafkaPython(Tool):
    def __init__(self, bootstrap):
        super().__init__(bootstrap)
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )

    def close(self):
        self.consumer.close()

    def produce(self, topic, values, *, codec="none", acks="all", partition=0, times=None, idempotent=False):
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, acks=acks if acks == "all" else int(acks), linger_ms=50,
            compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
        )  # fmt: skip
        sent = [
            producer.send(topic, value.encode(), partition=partition, timestamp_ms=times[number] if times else None)
            for number, value in enumerate(values)
        ]
        producer.flush(PATIENCE_S)
        for future in sent:
            future.get(PATIENCE_S)
        producer.close()

    def consume(self, topic, count, *, partition=0, offset=0):
        tp = kafka.TopicPartition(topic, partition)
        self.consumer.assign([tp])
        self.consumer.seek(tp, offset)
        found = []
        while len(found) < count:
            records = self.consumer.poll(PATIENCE_S * 1000)
            assert records, f"{len(found)} of {count}"
            found += [(record.offset, record.timestamp, record.value.decode()) for record in records[tp]]
        return found

    def offset_at(self, topic, partition, timestamp_ms):
        tp = kafka.TopicPartition(topic, partition)
        if timestamp_ms < 0:
            ask = {-1: self.consumer.end_offsets, -2: self.consumer.beginning_offsets}[timestamp_ms]
            return ask([tp])[tp]
        found = self.consumer.offsets_for_times({tp: timestamp_ms})[tp]
        return found.offset if found is not None else -1


class Aiokafka(Tool):
    def produce(self, topic, values, *, codec="none", acks="all", partition=0, times=None, idempotent=False):
        async def main():
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, acks=acks if acks == "all" else int(acks), linger_ms=50,
                compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
            )  # fmt: skip
            async with producer:
                sent = [
                    await producer.send(
                        topic, value.encode(), partition=partition, timestamp_ms=times[n] if times else None
                    )
                    for n, value in enumerate(values)
                ]
                await producer.flush()
                await asyncio.gather(*sent)

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def with_consumer(self, topic, partition, act):
        async def main():
            tp = aiokafka.TopicPartition(topic, partition)
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="none")
            consumer.assign([tp])
            async with consumer:
                return await act(consumer, tp)

        return asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def consume(self, topic, count, *, partition=0, offset=0):
        async def read(consumer, tp):
            consumer.seek(tp, offset)
            found = []
            while len(found) < count:
                records = await consumer.getmany(timeout_ms=5000)
                found += [(r.offset, r.timestamp, r.value.decode()) for r in records.get(tp, ())]
            return found

        return self.with_consumer(topic, partition, read)

    def offset_at(self, topic, partition, timestamp_ms):
        async def look(consumer, tp):
            if timestamp_ms < 0:
                ask = {-1: consumer.end_offsets, -2: consumer.beginning_offsets}[timestamp_ms]
                return (await ask([tp]))[tp]
            found = (await consumer.offsets_for_times({tp: timestamp_ms}))[tp]
            return found.offset if found is not None else -1

        return self.with_consumer(topic, partition, look)


TOOLS = {"kcat": Kcat, "confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


def is_here(name):
    return name != "kcat" or shutil.which("kcat") is not None
