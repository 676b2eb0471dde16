"""Transactions by librdkafka, one after the other, until standard input ends. See transacting.py.

Arguments: bootstrap, topic, partitions, producers, longest pause in ms, name, instance, file that names the instance
that is to live.
"""

import random
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import KafkaException, Producer

BOOTSTRAP, TOPIC, PARTITIONS, PRODUCERS, PAUSE_MS, NAME, INSTANCE, LIVING = sys.argv[1:]
PATIENCE_S = 10
TRIES = 5
over = threading.Event()
lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def goes_on():
    return not over.is_set() and Path(LIVING).read_text() == INSTANCE


def patiently(ask):
    """Ask again where librdkafka says that this helps."""
    for left in reversed(range(TRIES)):
        try:
            return ask(PATIENCE_S)
        except KafkaException as error:
            if not (error.args[0].retriable() and left):
                raise
    return None


def transact(producer, name, at, count):
    """Make one transaction; say what became of it. Raises: KafkaException: the producer is of no more use."""
    fate = "commit" if random.randrange(4) else "abort"
    outcome = "aborted"
    try:
        producer.begin_transaction()
        for i in range(count):
            value = f"{name} {INSTANCE} {at} {i} {count} {fate}"
            producer.produce(TOPIC, value, partition=random.randrange(int(PARTITIONS)))
        if fate == "commit":
            outcome = "unknown"
            patiently(producer.commit_transaction)
            outcome = "committed"
        else:
            patiently(producer.abort_transaction)
    except KafkaException as error:
        say("failed", error)
        if not error.args[0].txn_requires_abort():
            raise
        patiently(producer.abort_transaction)
    finally:
        say(outcome, name, INSTANCE, at, count)


def work(name, at):
    """Make transactions with one producer until it fails; return the number of the next."""
    producer = Producer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "transactional.id": name,
            "transaction.timeout.ms": 20_000,
            "message.timeout.ms": 9_000,
            "socket.timeout.ms": 4_000,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    try:
        patiently(producer.init_transactions)
        while goes_on():
            at += 1
            transact(producer, name, at - 1, random.randint(1, 12))
            if random.random() < 0.5:
                time.sleep(random.random() * int(PAUSE_MS) / 1000)
    except KafkaException as error:
        say("failed", error)
    return at


def run(name):
    at = 0
    while goes_on():
        at = work(name, at)


threads = [threading.Thread(target=run, args=(f"{NAME}-{number}",)) for number in range(int(PRODUCERS))]
for thread in threads:
    thread.start()
sys.stdin.buffer.read()
over.set()
for thread in threads:
    thread.join()
