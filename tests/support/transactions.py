"""Parts of batches, and what came of them, for the tests of transactions on real logs."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from logstore.env import SYSTEM
from logstore.store.transactions import processes
from logstore.store.transactions.state import TransactionOwner

# The process that decides is alive, and not the writer: this one stands for it.
HOST = processes.host(SYSTEM)


def alive() -> str:
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{HOST} {os.getpid()} {started}"


def part(store, values, *, topic="a", run="r", batch_id=0, task="", driver="", name="q"):
    """One task's part of a batch: appended, not prepared."""
    owner = TransactionOwner(driver=driver, timeout_ms=60_000)
    transaction = store.transactions.begin(name, batch_id, run=run, task=task, owner=owner)
    if values:
        store.append(topic, pa.table({"value": values}), transaction=transaction)
    return transaction


def values(store, topic="a", **how):
    return sorted(
        value.decode()
        for p in range(store.topic(topic).partitions)
        for value in store.read(topic, partition=p, **how).read_all()["value"].to_pylist()
    )


def everything(store, topic="a"):
    return values(store, topic, isolation="read_uncommitted")


def is_settled(store) -> bool:
    return all(
        not store.log(topic, p).producers.open_transactions()
        for topic in ("a", "b")
        for p in range(store.topic(topic).partitions)
    )
