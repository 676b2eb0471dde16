"""`pylog cluster recover-coordination`: restores a SQLite store from brokers' directories, and a copy if there is one.

`look` reads and decides, and changes nothing. `Recovery.write` puts the new store in its place, all or nothing, and
moves the former one aside. The directories stay locked until both are done, so that no broker starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from logstore.checkpoint import CheckpointError, read_checkpoint
from logstore.config import LogConfig
from logstore.env import Env, Lock
from logstore.errors import CorruptLogError, InvalidRequestError, NotAStoreError, PylogError, StoreLockedError
from logstore.log.leader_epochs import epoch_starts
from logstore.log.log import Log
from logstore.log.recovery import checked_batches
from logstore.log.segments.directory import topic_id_of
from logstore.store.log_dir import CLEAN_MARKER, LOCK
from logstore.store.meta_properties import DirectoryOwner, owner_of
from logstore.store.recovery_points import FILE_NAME as RECOVERY_POINTS
from replication.coordination import cluster, features, nodes, producer_ids
from replication.coordination.sqlite_file import copies_of, facts_of, make_private, users_of
from replication.coordination.sqlite_table import NodeTable, connect
from replication.coordination.sqlite_tree import SqliteTree
from replication.coordination.tree import CoordinationError, Create, SetData
from replication.model.cluster import INTERNAL_TOPICS, SHARE_STATE_TOPIC, BrokerId, ClusterState, TopicPartition
from replication.replica.partitions import NO_EFFECT
from replication.replica.storage.damage_notes import DamageNotes
from replication.replica.storage.log_dir import replica_named
from replication.replica.storage.offset_checkpoints import HIGH_WATERMARKS
from replication.tools.recovery_plan import STEP, FoundReplica, Plan, Row, plan

CHANGES_STEP = 1_000_000  # more changes than there can be since the copy
SESSION_MS = 60_000
COLUMNS = tuple(field.name for field in fields(Row))
Directories = Mapping[BrokerId, Path]


@dataclass(frozen=True, slots=True)
class Recovery:
    path: Path
    copy: Path | None
    cluster_id: str
    brokers: Directories
    plan: Plan
    env: Env

    def write(self) -> Path | None:
        """Put the new store in its place; return where the former file went."""
        new = self.path.with_name(f".{self.path.name}.recovering")
        _remove(new, self.env)
        make_private(self.env.files, new)
        try:
            if self.copy is not None:
                with contextlib.closing(sqlite3.connect(self.copy)) as db:
                    db.execute("VACUUM INTO ?", (str(new),))
            with contextlib.closing(connect(new)) as db:
                db.execute("BEGIN IMMEDIATE")
                self._fill(db)
                db.execute("COMMIT")
            _finish(new)
            self.env.files.forget(new)
            self.env.files.fsync(new)
            aside = self._set_aside()
            self.env.files.rename(new, self.path)
            self.env.files.fsync(self.path.parent)
        finally:
            _remove(new, self.env)
        return aside

    def _set_aside(self) -> Path | None:
        """Move the former store aside, with the files that SQLite would take for parts of the new one."""
        aside = self.path.with_name(f"{self.path.name}.lost-{self.env.clock.now_ms()}")
        was_there = self.env.files.stat(self.path) is not None
        for suffix in ("-wal", "-shm", ""):
            if self.env.files.stat(f"{self.path}{suffix}") is not None:
                self.env.files.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        return aside if was_there else None

    def _fill(self, db: sqlite3.Connection) -> None:
        """Drop all sessions; continue every counter from far above. The level, and unknown fields, are the copy's."""
        db.execute("DELETE FROM session")
        db.execute("DELETE FROM node WHERE owner <> 0")
        db.execute("UPDATE counter SET number = number + ?", (CHANGES_STEP,))
        db.execute("UPDATE node SET version = version + ? WHERE parent = ?", (STEP, nodes.INCARNATIONS))
        table = NodeTable(db)
        for path in nodes.PERSISTENT_PATHS:
            _put(table, path, None)
        level = features.finalized_at(table.node(nodes.FEATURES)).level
        _put(table, nodes.CLUSTER_ID, nodes.encode_cluster_id(self.cluster_id, level, _former(table, nodes.CLUSTER_ID)))
        _put(table, nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(self.plan.controller_epoch, level))
        begin = self.env.clock.now_ms() * 1000  # above any id that was given: they grow more slowly
        _put(table, producer_ids.NODE, producer_ids.skipping_to(table.node(producer_ids.NODE), begin))
        states = {tp: _former(table, nodes.state_path(tp)) for tp in self.plan.states}
        for name, topic in self.plan.topics.items():
            path = nodes.topic_path(name)
            _remove_all(db, nodes.partitions_path(name))
            _put(table, path, nodes.encode_topic(topic.partitions, _former(table, path)))
            _put(table, nodes.topic_id_path(name), topic.id.encode())
            if not topic.is_known:
                settings = {"cleanup.policy": "compact"} if name in INTERNAL_TOPICS else NO_EFFECT
                if name == SHARE_STATE_TOPIC:  # its records add to each other
                    settings = {"cleanup.policy": "delete", "retention.ms": "-1"}
                _put(table, nodes.topic_config_path(name), nodes.encode_config(settings))
        for tp, state in self.plan.states.items():
            _put(table, nodes.state_path(tp), nodes.encode_state(state, states[tp]))
        for name in self.plan.dropped:
            for path in nodes.all_of_topic(name):
                _remove_all(db, path)
        for path in (nodes.REASSIGNMENT, nodes.ELECTION):
            _remove_all(db, path)
        db.execute("DELETE FROM node WHERE parent IN (?, ?)", (nodes.CONFIG_CHANGES, nodes.ISR_CHANGES))


@contextlib.contextmanager
def look(
    path: Path,
    directories: Sequence[Path],
    *,
    copy: Path | None,
    env: Env,
    chosen_ids: Mapping[str, str] | None = None,
) -> Iterator[Recovery]:
    """Return a plan for these directories. They stay locked while it is open.

    Raises: StoreLockedError: a broker runs, or has the store open; NotAStoreError: a directory belongs to no broker,
    or to another cluster; CoordinationError: the copy is not one, or of another cluster; InvalidRequestError.
    """
    with contextlib.ExitStack() as held:
        owners = {directory: _owner(directory, env) for directory in directories}
        brokers = {owner.broker_id: directory for directory, owner in owners.items()}
        clusters = {owner.cluster_id for owner in owners.values()}
        if not directories or len(clusters) != 1 or len(brokers) != len(directories):
            held_by = ", ".join(f"{d}: broker {o.broker_id} of cluster {o.cluster_id}" for d, o in owners.items())
            raise NotAStoreError(
                f"give the directories of several brokers of one cluster; these are {held_by or 'none'}"
            )
        for directory in directories:
            held.callback(_locked(directory, env).release)
        if user := users_of(path, env):
            raise StoreLockedError(f"{path} is open: {user}; stop all brokers first")
        (cluster_id,) = clusters
        known, controller_epoch = (None, 0) if copy is None else asyncio.run(_read_copy(copy, cluster_id, env))
        found: dict[TopicPartition, dict[BrokerId, FoundReplica]] = {}
        for broker, directory in sorted(brokers.items()):
            for tp, replica in _replicas_in(directory, env):
                found.setdefault(tp, {})[broker] = replica
        decided = plan(found, brokers, known, controller_epoch=controller_epoch, chosen_ids=chosen_ids)
        yield Recovery(path, copy, cluster_id, brokers, decided, env)


def newest_copy(path: Path, env: Env) -> Path | None:
    return next((copy for copy in copies_of(path, env, None) if facts_of(copy) is not None), None)


def _owner(directory: Path, env: Env) -> DirectoryOwner:
    owner = owner_of(directory, env)
    if owner is None:
        raise NotAStoreError(f"{directory} is not the directory of a broker: give the log.dirs of each broker")
    return owner


def _locked(directory: Path, env: Env) -> Lock:
    lock = env.files.lock(directory / LOCK, wait=False)
    if lock is None:
        raise StoreLockedError(f"{directory} is in use: stop all brokers of the cluster first")
    return lock


async def _read_copy(copy: Path, cluster_id: str, env: Env) -> tuple[ClusterState, int]:
    facts = facts_of(copy)
    if facts is None:
        raise CoordinationError(f"{copy} is not a sound copy of a coordination store")
    if facts.cluster_id != cluster_id:
        raise CoordinationError(f"{copy} is of cluster {facts.cluster_id}, and the directories are of {cluster_id}")
    scratch = copy.with_name(f".{copy.name}.reading")  # opening a store writes a session to it
    _remove(scratch, env)
    make_private(env.files, scratch)
    try:
        with contextlib.closing(sqlite3.connect(copy)) as db:
            db.execute("VACUUM INTO ?", (str(scratch),))
        tree = await SqliteTree.open(scratch, on_session=lambda event: None, session_timeout_ms=SESSION_MS, env=env)
        try:
            return await cluster.read_cluster(tree), await cluster.read_controller_epoch(tree)
        finally:
            await tree.close()
    finally:
        _remove(scratch, env)


def _replicas_in(directory: Path, env: Env) -> Iterator[tuple[TopicPartition, FoundReplica]]:
    is_clean = env.files.stat(directory / CLEAN_MARKER) is not None
    watermarks = _offsets(directory / HIGH_WATERMARKS, env)
    points = _offsets(directory / RECOVERY_POINTS, env)
    notes = DamageNotes(env, directory, lambda act: act())
    with contextlib.suppress(CheckpointError):  # then its broker checks all logs
        notes.load()
    stored = notes.all()
    for name in sorted(env.files.list(directory).names):
        tp = replica_named(name)
        topic_id = topic_id_of(directory / name, env) if tp is not None else None
        if tp is None or topic_id is None:
            continue
        note = stored.get(tp)
        if note is not None and note.topic_id == topic_id:
            yield tp, FoundReplica(topic_id, damage=note.reason)
            continue
        log = Log.open(directory / name, topic_id=topic_id, config=LogConfig(), env=env, read_only=True)
        log.point.offset = points.get(tp, 0)
        try:
            yield tp, _replica_of(log, is_clean=is_clean, high_watermark=watermarks.get(tp, 0))
        except (PylogError, OSError) as error:
            yield tp, FoundReplica(topic_id, damage=str(error))
        finally:
            log.close()


def _replica_of(log: Log, *, is_clean: bool, high_watermark: int) -> FoundReplica:
    """Return the extent of the log as recovery will find it: behind the recovery point only sound batches count."""
    end, bases = log.log_end_offset, log.files.view.bases
    if not is_clean:
        end = _sound_end(log, bases, end)
    known = () if log.epochs.is_damaged else log.epochs.starts
    starts = known or epoch_starts(log.files, bases)
    epochs = tuple((each.epoch, each.start_offset) for each in starts if each.start_offset < end)
    return FoundReplica(log.topic_id, epochs, end, high_watermark)


def _sound_end(log: Log, bases: Sequence[int], end: int) -> int:
    point = log.point.offset
    first = max((base for base in bases if base <= point), default=0)
    for base in (base for base in bases if base >= first):
        segment = log.files.segment(base)
        stat = log.env.files.stat(segment.path)
        sound = base
        try:
            for _, batch in checked_batches(segment, 0 if stat is None else stat.size):
                sound = batch.next_offset
        except CorruptLogError:
            return max(sound, point) if sound >= point else sound
    return end


def _offsets(path: Path, env: Env) -> dict[TopicPartition, int]:
    try:
        rows = read_checkpoint(env, path)
        return {TopicPartition(row[0], int(row[1])): int(row[2]) for row in rows if not row[0].startswith("#")}
    except (FileNotFoundError, CheckpointError, ValueError, IndexError):
        return {}


def _finish(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
        found = db.execute("PRAGMA integrity_check").fetchone()
        if found != ("ok",):
            raise InvalidRequestError(f"the new store is damaged: {found[0]}")


def _put(table: NodeTable, path: str, data: bytes | None) -> None:
    if table.node(path) is None:
        if parent := path.rpartition("/")[0]:
            _put(table, parent, None)
        table.apply([Create(path, data or b"")], 0)
    elif data is not None:
        table.apply([SetData(path, data)], 0)


def _former(table: NodeTable, path: str) -> bytes | None:
    found = table.node(path)
    return None if found is None else found.data


def _remove_all(db: sqlite3.Connection, path: str) -> None:
    """Delete the node and its descendants: the paths between `/` and the character behind that."""
    db.execute("DELETE FROM node WHERE path = ? OR (path > ? AND path < ?)", (path, f"{path}/", f"{path}0"))


def _remove(path: Path, env: Env) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        env.files.unlink(f"{path}{suffix}")
