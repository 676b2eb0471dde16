"""The small tree that a cluster agrees on: live brokers, leaders, and what was requested.

`tree` is the interface of a store, in ZooKeeper's words. There are two: a SQLite file for brokers on one host, which
needs nothing installed (`sqlite_tree`, over `sqlite_table`, `sqlite_file`, `sqlite_sync` and `leases`), and ZooKeeper
(`zookeeper_tree`). `nodes` knows paths and contents (JSON, by `node_json`), `broker_node` those of a registration,
`features` which level the cluster is at and which brokers support it, `registration` how a broker registers,
`broker_secret` how brokers know each other, `own_file` where the store is if nothing else is said, `cluster` how
controllers and leaders write, `topic_nodes` which nodes belong to one topic; `tree_watch` follows a node; `turns`
watches the event loop of a session; `topics`, `reassignments`, `offline`, `placements` and `producer_ids` are other
parts of the tree.

Writes are conditional: a controller writes with its epoch, a leader with the version of the state that it knows.
"""

from __future__ import annotations

from logstore.env import Env
from logstore.errors import InvalidConfigError
from replication.coordination.sqlite_file import CopyPolicy, is_locked
from replication.coordination.tree import SESSION_TIMEOUT_MS, OnSession, Tree

__all__ = ["CopyPolicy", "is_blocked", "open_tree"]


async def open_tree(
    address: str,
    *,
    on_session: OnSession,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    env: Env | None = None,
    create: bool = True,
    copies: CopyPolicy | None = None,
) -> Tree:
    """Open a session with the store at `sqlite:PATH` or `zookeeper:HOST:PORT,HOST:PORT/CHROOT`.

    `create` and `copies` concern a SQLite file: whether it may be created, and how it is copied.

    Raises: InvalidConfigError: the address is neither; CoordinationError: the store does not answer.
    """
    kind, _, place = address.partition(":")
    if kind == "sqlite" and place:
        from replication.coordination.sqlite_tree import SqliteTree

        return await SqliteTree.open(
            place,
            on_session=on_session,
            session_timeout_ms=session_timeout_ms,
            env=env,
            create=create,
            copies=copies,
        )
    if kind == "zookeeper" and place:
        try:
            from replication.coordination.zookeeper_tree import ZooKeeperTree
        except ModuleNotFoundError as error:
            raise InvalidConfigError(
                'ZooKeeper needs kazoo: pip install "pyspark-pylog[zookeeper]"', address=address
            ) from error
        return await ZooKeeperTree.open(place, on_session=on_session, session_timeout_ms=session_timeout_ms, env=env)
    raise InvalidConfigError(
        f"coordination {address!r} must be sqlite:PATH or zookeeper:HOST:PORT/CHROOT", address=address
    )


def is_blocked(address: str) -> bool:
    """Return whether a process keeps all others from writing to the store, after a second; never in ZooKeeper."""
    kind, _, place = address.partition(":")
    return kind == "sqlite" and is_locked(place)
