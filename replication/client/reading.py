"""PartitionReader: the records of several partitions, from their positions on, fetched ahead.

Laws: a record is handed out once, in the order of its partition, and the position is behind the last one that was. A
partition that is dropped or moved hands out nothing of what was fetched before. When a partition has another leader,
nothing is read before that one has shown that it holds the records up to the position; where it does not, `take` says
so until the partition is moved. One request waits on a leader, and two answers for a partition. Belongs to one event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError, PylogError, UnreadableBatchError
from replication.client.attempts import LOST, failure_of, may_pass
from replication.client.cluster import Cluster
from replication.client.fetching import (
    EARLIEST,
    FETCH_BYTES,
    FETCH_BYTES_MAX,
    LATEST,
    Fetched,
    TruncatedError,
    ask_epoch_ends,
    ask_replica,
    list_offsets,
    out_of_range,
    whole,
)
from replication.client.metadata import NO_EPOCH, NO_LEADER
from replication.errors import ErrorCode, error_of
from replication.model.cluster import TopicPartition
from replication.network.loops import is_set_within
from replication.protocol.messages import (
    FetchPartition,
    Isolation,
    PartitionFetched,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

AHEAD = 2  # answers: one that is handed out, and the next
REQUEST_BYTES = 16 * 1024 * 1024
RETRY_S = 0.1
_RESETS = {"earliest": EARLIEST, "latest": LATEST}


class Position(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it, or a later one of the same log."""

    offset: int
    leader_epoch: int = NO_EPOCH


class _Ahead(NamedTuple):
    """An answer that is being handed out."""

    rows: Iterator[pa.RecordBatch]
    end: Position


class PartitionReader:
    """See the module. `changed` is set when there may be something to take, or an error to raise."""

    def __init__(
        self,
        cluster: Cluster,
        isolation: Isolation,
        reset: Literal["earliest", "latest", "none"],
        changed: asyncio.Event,
    ) -> None:
        self._cluster, self._isolation, self._reset = cluster, isolation, reset
        self._changed, self._wanted = changed, asyncio.Event()
        self.positions: dict[TopicPartition, Position] = {}
        self.paused: frozenset[TopicPartition] = frozenset()
        self._ahead: dict[TopicPartition, deque[_Ahead]] = {}
        self._fetch_bytes: dict[TopicPartition, int] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._agreed: dict[TopicPartition, int] = {}  # the leader epoch in which the position was found right
        self._ids: dict[TopicPartition, str] = {}  # of the topic in which the position is
        self._cut: dict[TopicPartition, TruncatedError] = {}
        # By broker, and the rack in the request: a partition that must come from its leader takes no other with it.
        self._asked: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._fetching: set[TopicPartition] = set()
        self._fetcher: asyncio.Task[None] | None = None
        self._error: PylogError | None = None

    async def add(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        """Read these from their positions on; None: as `reset` says.

        Raises: OffsetOutOfRangeError: without a position, and `reset` is none; and those of `list_offsets`.
        """
        found = await self._reset_positions([tp for tp, position in positions.items() if position is None])
        for tp, position in positions.items():
            self.seek(tp, position or found[tp])
        if self._fetcher is None:
            self._fetcher = asyncio.get_running_loop().create_task(self._fetch_all())
            self._fetcher.add_done_callback(self._ended)

    def seek(self, tp: TopicPartition, position: Position) -> None:
        """Go on there."""
        self._forget(tp)
        self.positions[tp] = position
        self._ahead[tp] = deque()
        self._wanted.set()

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.positions.pop(tp, None)
            self._ahead.pop(tp, None)
            self._forget(tp)
        self.paused &= self.positions.keys()

    def _forget(self, tp: TopicPartition) -> None:
        for known in (self._agreed, self._cut, self._ids):
            known.pop(tp, None)

    def look(self) -> None:
        """Something was resumed."""
        self._wanted.set()

    def take(self) -> pa.RecordBatch | None:
        """The next records of the partition that waited longest.

        Raises: TruncatedError, again until the partition is moved; CorruptLogError, and why a fetch failed.
        """
        if self._cut:
            raise next(iter(self._cut.values()))
        if (error := self._error) is not None:
            if self._fetcher is not None and not self._fetcher.done():
                self._error = None  # it goes on trying
            raise error
        for tp, ahead in tuple(self._ahead.items()):
            while ahead and tp not in self.paused:
                try:
                    rows = next(ahead[0].rows, None)
                except UnreadableBatchError as unreadable:  # raised once: a reader that goes on reads what follows
                    self.seek(tp, Position(unreadable.next_offset, ahead[0].end.leader_epoch))
                    raise
                except CorruptLogError:  # in this copy, or on its way: it is fetched again, from the leader
                    self.seek(tp, self.positions[tp])
                    self._cluster.read_replicas.failed([tp])
                    self._later(tp)
                    raise
                if rows is None:
                    self.positions[tp] = ahead.popleft().end
                    self._wanted.set()
                elif rows.num_rows:
                    offset = rows.column("offset")[-1].as_py() + 1
                    self.positions[tp] = Position(offset, ahead[0].end.leader_epoch)
                    self._ahead[tp] = self._ahead.pop(tp)  # the others first
                    return named(rows, tp)
        return None

    async def close(self) -> None:
        tasks = [*self._asked.values(), *([self._fetcher] if self._fetcher else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------- fetching

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next `take` raises what went wrong here."""
        self._changed.set()
        self._error = failure_of(task, "the consumer") or self._error

    def _next(self, tp: TopicPartition) -> Position | None:
        """Where the next fetch of a partition begins; None if it is no longer read."""
        ahead = self._ahead.get(tp)
        return ahead[-1].end if ahead else self.positions.get(tp)

    async def _fetch_all(self) -> None:
        await asyncio.to_thread(import_module, "logstore.records.arrow")  # Arrow takes its time
        while True:
            self._wanted.clear()
            shares: dict[tuple[int, str], dict[TopicPartition, FetchPartition]] = {}
            for tp in tuple(self.positions):
                if not self._may_fetch(tp):
                    continue
                try:
                    planned = await self._planned(tp)
                except PylogError as error:
                    self._raise_later(error, tp)
                    continue
                if planned is not None and planned[0] not in self._asked:
                    shares.setdefault(planned[0], {})[tp] = planned[1]
            for place, share in shares.items():
                self._fetching |= share.keys()
                task = asyncio.create_task(self._fetch(place, share))
                self._asked[place] = task
                task.add_done_callback(self._ended)
            await is_set_within(self._wanted, RETRY_S if self._not_before else None)

    def _may_fetch(self, tp: TopicPartition) -> bool:
        is_full = len(self._ahead.get(tp, ())) >= AHEAD or tp in self.paused or tp in self._fetching
        if is_full or tp in self._cut or self._not_before.get(tp, 0.0) > asyncio.get_running_loop().time():
            return False
        self._not_before.pop(tp, None)
        return True

    async def _planned(self, tp: TopicPartition) -> tuple[tuple[int, str], FetchPartition] | None:
        """Which broker to ask, with which rack, for what, if there is one now. Raises: as `Cluster.leader`."""
        leader = await self._cluster.leader(tp)
        topic_id = (await self._cluster.topic(tp.topic)).id
        if tp in self.positions and self._ids.setdefault(tp, topic_id) != topic_id:
            self._made_again(tp, topic_id)
        position = self._next(tp)
        if leader.broker == NO_LEADER:
            self._later(tp)
            return None
        if position is None or tp in self._cut:
            return None
        size = self._fetch_bytes.get(tp, FETCH_BYTES)
        wanted = FetchPartition(tp.partition, position.offset, size, leader.epoch)
        is_in_doubt = self._is_in_doubt(tp, wanted)
        broker = leader.broker if is_in_doubt else self._cluster.read_replicas.of(tp, leader)
        return (broker, self._cluster.read_replicas.rack([tp])), wanted

    async def _fetch(self, place: tuple[int, str], share: Mapping[TopicPartition, FetchPartition]) -> None:
        broker = place[0]
        try:
            await self._agree(broker, share)
            sure = {tp: wanted for tp, wanted in share.items() if not self._is_in_doubt(tp, wanted)}
            if sure:
                answers = await ask_replica(self._cluster, broker, sure, self._isolation, REQUEST_BYTES)
                for tp, answer in answers.items():
                    if self._is_at(tp, sure[tp]):
                        await self._answered(tp, answer, sure[tp])
        except LOST as error:
            logger.info("broker %d did not answer a fetch: %s", broker, error)
            self._later(*share)
        except PylogError as error:
            if may_pass(error):
                self._later(*share)
            else:
                self._raise_later(error, *share)
        finally:
            del self._asked[place]
            self._fetching -= share.keys()
            self._wanted.set()

    def _is_at(self, tp: TopicPartition, wanted: FetchPartition) -> bool:
        """Is that still what is to be fetched next?"""
        position = self._next(tp)
        return position is not None and position.offset == wanted.fetch_offset

    def _is_in_doubt(self, tp: TopicPartition, wanted: FetchPartition) -> bool:
        """Has its leader still to show that it holds the records before the position?"""
        position, leader_epoch = self._next(tp), wanted.current_leader_epoch
        known = (NO_EPOCH, leader_epoch)
        return (
            position is not None
            and leader_epoch != NO_EPOCH
            and position.leader_epoch not in known
            and self._agreed.get(tp) != leader_epoch
        )

    async def _agree(self, broker: int, share: Mapping[TopicPartition, FetchPartition]) -> None:
        """Ask the leader where the logs part, of the partitions in doubt. Raises: as `ask_epoch_ends`, KafkaError."""
        for tp, wanted in share.items():
            if self._is_in_doubt(tp, wanted):
                self._ahead[tp].clear()  # it was not handed out: it is fetched again
        doubts = {tp: self.positions[tp] for tp, wanted in share.items() if self._is_in_doubt(tp, wanted)}
        if not doubts:
            return
        epochs = {tp: position.leader_epoch for tp, position in doubts.items()}
        ends = await ask_epoch_ends(self._cluster, await self._cluster.connection(broker), epochs)
        for tp, (offset, _) in doubts.items():
            end = ends.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            if isinstance(end, ErrorCode):
                error = error_of(end, f"where the logs of {tp} part")
                self._later(tp) if error.code.is_retriable else self._raise_later(error, tp)
                continue
            if end < offset:  # or retention has deleted what came before
                end = max(end, (await list_offsets(self._cluster, {tp: EARLIEST}))[tp].offset)
            if self.positions.get(tp) == doubts[tp]:
                self._judge(tp, end, share[tp].current_leader_epoch)

    def _judge(self, tp: TopicPartition, end: int, leader_epoch: int = NO_EPOCH) -> None:
        """The log holds what was read before `end`, and nothing else that was."""
        offset = self.positions[tp].offset
        if offset <= end:
            self._agreed[tp] = leader_epoch
            return
        self._cut[tp] = TruncatedError(
            f"{tp} [{end}, {offset}) was read, and is cut from the log by an unclean leader election: seek to {end} "
            "to read what stands there now",
            tp=tp,
            start=end,
            end=offset,
        )
        self._changed.set()

    def _made_again(self, tp: TopicPartition, topic_id: str) -> None:
        """Note that the topic was deleted and created again under its name, after records of it were read."""
        self._ids[tp] = topic_id
        self._ahead[tp].clear()
        offset = self.positions[tp].offset
        if not offset:
            return
        self._cut[tp] = TruncatedError(
            f"{tp} [0, {offset}) was read, and the topic was deleted and made again: seek to 0 to read what is new",
            tp=tp,
            start=0,
            end=offset,
        )
        self._changed.set()

    async def _answered(self, tp: TopicPartition, answer: PartitionFetched, asked: FetchPartition) -> None:
        """Raises: KafkaError, OffsetOutOfRangeError, CorruptLogError."""
        offset = asked.fetch_offset
        if answer.error_code:
            error = error_of(answer.error_code, f"fetch of {tp} at offset {offset}")
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(tp, asked)
            elif error.code.is_retriable:
                self._later(tp)
            else:
                raise error
        elif len(answer.records):
            found = whole(answer, tp, offset, INT64_MAX, self._isolation)
            if found is None:
                self._fetch_bytes[tp] = min(2 * asked.max_bytes, FETCH_BYTES_MAX)
            else:
                end = Position(found.next_offset, found.leader_epoch)
                self._ahead[tp].append(_Ahead(self._rows(tp, offset, found), end))
                self._changed.set()

    async def _out_of_range(self, tp: TopicPartition, asked: FetchPartition) -> None:
        """Go on as `reset` says, unless what was read is gone. Raises: OffsetOutOfRangeError, as `list_offsets`."""
        error = await out_of_range(self._cluster, tp, asked.fetch_offset)
        if not self._is_at(tp, asked):
            return
        if error.end < asked.fetch_offset and self.positions[tp].leader_epoch != NO_EPOCH:
            self._ahead[tp].clear()
            self._judge(tp, error.end)
        elif self._reset == "none":
            raise error
        else:
            begin = (await self._reset_positions([tp]))[tp]
            logger.warning("%s has no offset %d: reading on at %d", tp, asked.fetch_offset, begin.offset)
            if self._is_at(tp, asked):
                self.seek(tp, begin)

    def _rows(self, tp: TopicPartition, offset: int, found: Fetched) -> Iterator[pa.RecordBatch]:
        from logstore.records.arrow import decode_pieces

        for part in found.parts:
            where = (f"{tp} at {self._cluster.where}", 0)
            yield from decode_pieces(part, start=offset, end=INT64_MAX, where=where)

    async def _reset_positions(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        if not tps:
            return {}
        if self._reset == "none":
            raise await out_of_range(self._cluster, tps[0], -1)
        wanted = dict.fromkeys(tps, _RESETS[self._reset])
        found = await list_offsets(self._cluster, wanted, isolation=self._isolation)
        epochs = {tp: each.leader_epoch if self._reset == "latest" else NO_EPOCH for tp, each in found.items()}
        return {tp: Position(each.offset, epochs[tp]) for tp, each in found.items()}

    def _raise_later(self, error: PylogError, *tps: TopicPartition) -> None:
        """The next `take` raises it; then these are tried again."""
        self._error = error
        self._later(*tps)
        self._changed.set()

    def _later(self, *tps: TopicPartition) -> None:
        self._cluster.forget({tp.topic for tp in tps})
        self._not_before |= dict.fromkeys(tps, asyncio.get_running_loop().time() + RETRY_S)


def named(rows: pa.RecordBatch, tp: TopicPartition) -> pa.RecordBatch:
    """The rows with the columns `topic` and `partition` in front."""
    import pyarrow as pa

    # Made of buffers: `pa.array` and `pa.repeat` would load pandas first, for a fifth of a second.
    def repeated(number: int) -> pa.Array:
        numbers = pa.py_buffer(number.to_bytes(4, sys.byteorder) * rows.num_rows)
        return pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, numbers])

    name = tp.topic.encode()
    ends = pa.py_buffer(struct.pack("=2i", 0, len(name)))
    names = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(name)])
    topic, partition = pa.DictionaryArray.from_arrays(repeated(0), names), repeated(tp.partition)
    return pa.RecordBatch.from_arrays(
        [topic, partition, *rows.columns], names=["topic", "partition", *rows.schema.names]
    )
