"""ReplicaLogDir: the store directory of one broker: its logs, and their checkpoints.

::

    replication-offset-checkpoint         per partition: its high watermark some seconds ago
    recovery-point-offset-checkpoint      per partition: everything below this offset was fsynced
    broker.boot                           the boot of the machine in which the broker last started
    damaged-replicas                      see `damage_notes`

Everything here blocks: it is called in threads, one call at a time except for `open_log`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from logstore.checkpoint import (
    CheckpointError,
    check_mark,
    fsync_or_mark,
    marking_failure,
    write_atomic,
)
from logstore.config import LogConfig
from logstore.env import Env, boot_id
from logstore.errors import CorruptLogError, FailedStoreError, PylogError, StorageError
from logstore.log import soundness
from logstore.log.log import Log
from logstore.log.segments.directory import create, topic_id_of
from logstore.log.segments.names import DELETED_PARTITION, PARTITION, deleted_partition
from logstore.log.soundness import SetAside
from logstore.store.catalog import Catalog
from logstore.store.description import new_topic_id
from logstore.store.log_dir import LogDir
from logstore.store.topics import remove_partition
from replication.model.cluster import TopicPartition
from replication.replica.storage import clean_stop
from replication.replica.storage.clean_stop import NotedLog
from replication.replica.storage.damage_notes import DamageNote, DamageNotes
from replication.replica.storage.offset_checkpoints import OffsetCheckpoints

logger = logging.getLogger(__name__)

BOOT = "broker.boot"


Configs = Callable[[str], LogConfig]


def replica_named(name: str) -> TopicPartition | None:
    """Return the replica whose directory has this name; None for other files, and for hidden replicas."""
    named = None if DELETED_PARTITION.fullmatch(name) else PARTITION.fullmatch(name)
    return None if named is None else TopicPartition(named[1], int(named[2]))


class ReplicaLogDir:
    """`topic_ids` are the replicas; `has_lost_writes`: power failed since the last life.

    `damage` holds what opening and recovery found: the first offset that is not sound (None: unknown), and the
    reason. The end of an `unrecovered` log is unknown; a `half_recovered` one, of which damage was passed over, is
    recovered again when it is sound.
    """

    def __init__(self, log_dir: LogDir, env: Env) -> None:
        self.log_dir = log_dir
        self.path = log_dir.path
        self.has_lost_writes = False
        self.topic_ids: dict[TopicPartition, str] = {}
        self.checkpoints = OffsetCheckpoints(env, log_dir)
        self.damage: dict[TopicPartition, tuple[int | None, str]] = {}
        self.unrecovered: set[TopicPartition] = set()
        self.half_recovered: set[TopicPartition] = set()
        self.notes = DamageNotes(env, log_dir.path, log_dir.reserve.despite_full_disk)
        self._is_sure = True  # every damaged replica is noted
        self._env = env
        self._due_ms: dict[str, int] = {}  # of hidden replicas, by name
        self._noted: dict[TopicPartition, NotedLog] = {}  # by a clean stop; until logs are open

    @classmethod
    def open(cls, path: Path, env: Env) -> ReplicaLogDir:
        """Take the directory for this broker alone. Raises: StoreLockedError, NotAStoreError."""
        return cls(LogDir.open(path, read_only=False, create=True, env=env, alone_for="broker"), env)

    def look(self) -> None:
        """Read what is here, and find out whether power failed since the last life."""
        self._noted = clean_stop.decode(self.log_dir.clean_note())
        for name in self._env.files.list(self.path).names:
            tp = replica_named(name)
            if tp is not None and (topic_id := self._topic_id(tp, f"{self.path}/{name}")) is not None:
                self.topic_ids[tp] = topic_id
        try:
            self.notes.load()
        except CheckpointError as error:
            logger.error("%s: every replica is checked", error)
            self._is_sure = False
        self.has_lost_writes = self._noted_boot() != self._boot() and not self.log_dir.is_clean
        if not self.has_lost_writes:
            self.note_boot()
        self.checkpoints.load()

    def _topic_id(self, tp: TopicPartition, directory: str) -> str | None:
        noted = self._noted.get(tp)
        if noted is not None and self._env.files.stat(directory) == noted.view.directory:
            return noted.topic_id
        return topic_id_of(directory, self._env)

    def _boot(self) -> str:
        return boot_id(self._env.files)

    def _noted_boot(self) -> str:
        try:
            return self._env.files.read_all(self.path / BOOT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return self._boot()

    def note_boot(self) -> None:
        """Note this boot: the cluster has decided about the writes that a former boot may have lost."""
        self.has_lost_writes = False
        if self._env.files.stat(self.path / BOOT) is None or self._noted_boot() != self._boot():
            write_atomic(self._env, self.path / BOOT, self._boot().encode() + b"\n")

    # -------------------------------------------------------------------- logs

    def recover(self, configs: Configs, *, threads: int = 2) -> dict[TopicPartition, Log | PylogError]:
        """Open every log, and recover it after a crash; an error stands in the place of one that cannot be opened.

        A damaged log is opened as far as it is sound, and is in `damage`.
        """
        is_clean = self.log_dir.is_clean and self._is_sure
        self.log_dir.mark_dirty()
        points = self.log_dir.recovery_points.read()

        def opened(tp: TopicPartition) -> Log | PylogError:
            try:
                return self._open_or_mend(tp, configs(tp.topic), points.get(tp, 0), is_clean=is_clean)
            except PylogError as error:
                logger.error("tp=%s is not recovered: %s", tp, error)
                self.unrecovered.add(tp)
                self._note_damage(tp, None, str(error))
                return error

        with ThreadPoolExecutor(threads, "recover") as pool:
            logs = dict(zip(self.topic_ids, pool.map(opened, self.topic_ids), strict=True))
        self._noted = {}
        self._lower_to_ends(logs)
        return logs

    def _open_or_mend(self, tp: TopicPartition, config: LogConfig, recovery_point: int, *, is_clean: bool) -> Log:
        topic_id, damage = self.topic_ids[tp], list[str]()
        note = self.notes.all().get(tp)
        if note is not None and note.topic_id != topic_id:  # it concerns another topic of this name
            self.note_mended(tp)
            note = None
        log = self._log(tp, topic_id, config, recovery_point)
        try:
            if note is None and is_clean:
                _settle(log, self._noted.get(tp))
            else:
                self.log_dir.reserve.despite_full_disk(lambda: log.recover(lambda error: damage.append(str(error))))
                _settle(log)
                if damage:
                    self.half_recovered.add(tp)
            found = soundness.find_from(log, note.offset) if note is not None else None
            if found is not None:
                damage.append(str(found))
        except CorruptLogError as error:
            self.unrecovered.add(tp)
            damage.append(str(error))
        if note is not None and note.is_cut:
            damage.append(note.reason)
        if damage:
            logger.error("tp=%s is damaged: %s", tp, "; ".join(damage))
            self._note_damage(tp, note.offset if note is not None else None, damage[0])
        elif note is not None:
            logger.info("tp=%s is sound: its noted damage is repaired", tp)
            self.note_mended(tp)
        return log

    def _note_damage(self, tp: TopicPartition, offset: int | None, reason: str) -> None:
        """Note it for the next start, too: a clean end says that everything but the noted is sound."""
        self.damage[tp] = offset, reason
        note = self.notes.all().get(tp)
        try:
            if note is None:
                self.notes.put(tp, DamageNote(self.topic_ids[tp], offset, reason))
        except StorageError as error:
            logger.error("tp=%s damage cannot be noted: %s", tp, error)

    def would_cut_at(self, log: Log, offset: int | None) -> int:
        """Return where `set_aside` would cut: everything from there on must exist elsewhere. `offset`: known damage.

        A compacted log goes whole: other replicas may have removed the tombstones of records that are left here.
        """
        return 0 if log.files.may_have_gaps else soundness.first_damage(log, offset)

    def set_aside(self, tp: TopicPartition, log: Log, offset: int) -> SetAside:
        """Cut a damaged log there (see `soundness`), after noting that it will be incomplete.

        Raises: CorruptLogError: it would have to be cut lower by now.
        """
        note = self.notes.all().get(tp)
        if note is not None:
            self.notes.put(tp, note._replace(is_cut=True))
        whole = log.files.may_have_gaps
        done = soundness.set_aside(log, offset, whole=whole, cutting=lambda at: self.checkpoints.cutting(tp, at))
        with self.checkpoints.cutting(tp, done.offset):  # a crash may have cut it before
            return done

    def note_mended(self, tp: TopicPartition) -> None:
        """Forget the damage of a log that is sound again, or gone; durable on return."""
        self.notes.remove(tp)
        self.damage.pop(tp, None)
        self.unrecovered.discard(tp)
        self.half_recovered.discard(tp)

    def _lower_to_ends(self, logs: Mapping[TopicPartition, Log | PylogError]) -> None:
        """Lower high watermarks to the ends of logs, since records appended later are not committed by them."""
        noted = self.checkpoints.high_watermarks
        ends = {
            tp: log.log_end_offset if isinstance(log, Log) and tp not in self.damage else noted.get(tp, 0)
            for tp, log in logs.items()
        }
        self.checkpoints.lower_to(ends)

    def open_log(self, tp: TopicPartition, topic_id: str, config: LogConfig) -> Log:
        log = self._log(tp, topic_id, config, self.log_dir.recovery_points.read().get(tp, 0))
        _settle(log)
        return log

    def _log(self, tp: TopicPartition, topic_id: str, config: LogConfig, recovery_point: int) -> Log:
        log = Log(self.log_dir.partition(*tp), topic_id=topic_id, config=config, env=self._env)
        log.point.offset = recovery_point
        return log

    def create_logs(self, wanted: Mapping[TopicPartition, str]) -> None:
        """Create empty replicas with these topic ids. Replicas of other topics of these names are hidden."""
        self.log_dir.reserve.keep()
        with marking_failure(self._env, self.path):
            for tp in wanted:
                if self._env.files.stat(self.log_dir.partition(*tp)) is not None:
                    self._hide(tp)
            # The checkpoints are those of hidden replicas, of which later flushes note nothing.
            self.log_dir.recovery_points.forget(wanted)
            self.checkpoints.forget(wanted)
            for tp, topic_id in wanted.items():
                self.note_mended(tp)
                create(self.log_dir.partition(*tp), topic_id=topic_id, env=self._env)
                self.topic_ids[tp] = topic_id
            self._env.files.fsync(self.path)

    def delete(self, tp: TopicPartition, delay_ms: int) -> None:
        """Delete a replica: it is gone at once, its files `delay_ms` later (its topic's `file.delete.delay.ms`)."""
        self.checkpoints.forget([tp])
        self.note_mended(tp)
        self.log_dir.reserve.despite_full_disk(lambda: self.log_dir.recovery_points.forget({tp}))
        if self._env.files.stat(self.log_dir.partition(*tp)) is not None:
            self._due_ms[self._hide(tp)] = self._env.clock.now_ms() + delay_ms
            fsync_or_mark(self._env, self.path, self.path)
        topic_id = self.topic_ids.pop(tp, None)
        catalog = Catalog(self.path / "topics", self._env)  # of adopted topics
        found = catalog.find(tp.topic)
        if found is not None and found.topic_id == topic_id:
            with catalog.lock():
                self._env.files.unlink(self.path / "topics" / f"{tp.topic}.json")

    def _hide(self, tp: TopicPartition) -> str:
        hidden = deleted_partition(self.path, *tp, new_topic_id())
        self._env.files.rename(self.log_dir.partition(*tp), hidden)
        return hidden.name

    def sweep(self, delay_ms: int) -> None:
        """Remove hidden replicas that are due; those of former lives after `delay_ms`."""
        now_ms = self._env.clock.now_ms()
        for name in self._env.files.list(self.path).names:
            path = self.path / name
            stat = self._env.files.stat(path) if DELETED_PARTITION.fullmatch(name) else None
            if stat is None:
                continue
            if now_ms >= self._due_ms.get(name, stat.mtime_ns // 1_000_000 + delay_ms):
                remove_partition(self._env, path)
                self._due_ms.pop(name, None)

    # -------------------------------------------------------------- clean ends

    def flush(self, logs: Iterable[tuple[TopicPartition, Log]]) -> bool:
        """Fsync these logs, and store how far; False if one of them cannot be read.

        Raises: FailedStoreError: the content of the disk is unknown.
        """
        is_done = True
        with self.checkpoints.noting() as points:
            for tp, log in logs:
                if tp in self.unrecovered:
                    continue
                try:
                    points[tp] = log.topic_id, log.flush()
                except FailedStoreError:
                    raise
                except (PylogError, OSError) as error:
                    if self._env.files.stat(log.directory) is not None:  # otherwise it was deleted
                        logger.error("tp=%s is not flushed: %s", tp, error)
                        is_done = False
        return is_done

    def close(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Flush everything, note a clean end, and release the directory.

        Damage that could not be noted prevents the clean marker. So does a power failure that no controller has
        decided about yet: the next life must report it.
        """
        try:
            is_done = self.flush(logs.items())
            check_mark(self._env, self.path)
            if is_done and not self.has_lost_writes and self.damage.keys() <= self.notes.all().keys():
                self.log_dir.mark_clean(self._clean_note(logs))
        except (PylogError, StorageError) as error:
            logger.warning("path=%s not closed cleanly: %s", self.path, error)
        finally:
            for log in logs.values():
                log.close()
            self.log_dir.close()

    def _clean_note(self, logs: Mapping[TopicPartition, Log]) -> bytes:
        now_ms = self._env.clock.now_ms()
        odd = self.damage.keys() | self.unrecovered | self.notes.all().keys()
        noted = {tp: clean_stop.note_of(log, now_ms) for tp, log in logs.items() if tp not in odd}
        return clean_stop.encode({tp: note for tp, note in noted.items() if note is not None})


def _settle(log: Log, noted: NotedLog | None = None) -> None:
    """Read the log's end and epochs now, so that later reads are cheap; or take them as `noted`, if it still is so."""
    if noted is not None:
        log.files.view = noted.view
    log.log_end_offset  # noqa: B018  it is read, and kept
    if noted is not None and log.files.view is noted.view:
        log.epochs.adopt(noted.epochs)
    else:
        log.epochs.latest  # noqa: B018  likewise
