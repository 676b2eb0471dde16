"""Members of a share group, by librdkafka: `share_workers.py BOOTSTRAP GROUP TOPIC FILE WORKERS`.

Each is a thread with a consumer of its own that accepts every record. FILE gets a line for each record that it is
given, that is accepted, and of which it cannot know, since the answer did not come. A line on its input ends it.
"""

import os
import sys
import threading

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

bootstrap, group, topic, path, workers = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
stopping = threading.Event()


def tell(word, number, messages):
    lines = "".join(
        f"{word} {os.getpid()}-{number} {m.partition()} {m.offset()} {m.delivery_count()}\n" for m in messages
    )
    os.write(log, lines.encode())


def work(number):
    settings = {"share.acknowledgement.mode": "explicit", "max.poll.records": "5"}
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **settings})
    consumer.subscribe([topic])
    while not stopping.is_set():
        messages = [message for message in consumer.poll(0.5) if message.error() is None]
        if not messages:
            continue
        tell("given", number, messages)
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        try:
            found = consumer.commit_sync(30)
        except KafkaException:
            tell("unsure", number, messages)
            continue
        failed = {(tp.topic, tp.partition) for tp, error in found.items() if error is not None}
        tell("accepted", number, [m for m in messages if (m.topic(), m.partition()) not in failed])
        tell("unsure", number, [m for m in messages if (m.topic(), m.partition()) in failed])
    consumer.close()


threads = [threading.Thread(target=work, args=(number,)) for number in range(int(workers))]
for thread in threads:
    thread.start()
sys.stdin.readline()
stopping.set()
for thread in threads:
    thread.join()
