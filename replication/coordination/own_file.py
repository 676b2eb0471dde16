"""The store of a broker that was told of no other one: a SQLite file, in the directory that this broker owns."""

from __future__ import annotations

from pathlib import Path

from logstore.env import SYSTEM
from logstore.errors import NotAStoreError
from logstore.store.log_dir import BROKER, LogDir
from logstore.store.meta_properties import owner_of
from replication.model.cluster import BrokerId

COORDINATION_FILE = "coordination.db"


def check_directory(log_dirs: str, broker: BrokerId, coordination: str) -> None:
    """Refuse a directory that this broker cannot take, as far as a look can tell. `coordination`: "" is this file.

    Raises: NotAStoreError, StoreLockedError.
    """
    path = Path(log_dirs).absolute()
    LogDir.check_free(path, env=SYSTEM, alone_for="broker")
    owner = owner_of(path, SYSTEM)
    if owner is None:
        return
    if owner.broker_id != broker:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}; "
            f"this is broker {broker}: give every broker a directory of its own"
        )
    if not coordination and SYSTEM.files.stat(path / BROKER / COORDINATION_FILE) is None:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}, whose coordination store is "
            "not in it: name the store with --coordination; if it was in the directory and is gone, run `pylog cluster "
            "recover-coordination` (docs/operations.md)"
        )
