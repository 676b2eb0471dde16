"""SharePartition: one partition that this broker leads, for one group. It drives the machine beside it.

It reads the state that is stored, has changes stored, and lets go of locks that are over; whoever waits for records is
woken when some may be had. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from logstore.env import Clock
from logstore.errors import PylogError
from logstore.records import batch
from logstore.records.marker import marker_of
from replication.broker.share.letter_writer import LetterWriter, Source
from replication.broker.share.machine import events
from replication.broker.share.machine.events import Acknowledgement, AcquiredRange, Range
from replication.broker.share.machine.state import SharePartitionState, ShareTerms
from replication.broker.share.machine.step import deadline_ms, letters_of, load, next_offset, step
from replication.broker.share_states import ShareStateCalls, Written
from replication.config.group import GroupConfig
from replication.coordinators.share_state.machine.state import SharePartitionKey
from replication.coordinators.share_state.states import BY_RESET, IdPartition
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.times import TimeMs
from replication.protocol.messages import Aborted, FetchPartition, Isolation, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica.leader.leader import Leader
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

RETRY_S = 0.5  # after the state could not be loaded, or locks that are over could not be let go
# The state here counts no longer: another broker leads, the group has set the offset, or shares the partition no more.
_FENCED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    }
)
# The errors of members for those of coordinators: a member asks again where the partition is led.
_TOLD = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Wanted(NamedTuple):
    """A member's wish: how much of what is read it takes."""

    member: str
    batch_records: int
    is_exact: bool


class Given(NamedTuple):
    """Whole batches, and the ranges of their records that are the member's for a while."""

    records: Buffer = b""
    ranges: Sequence[AcquiredRange] = ()

    @property
    def given(self) -> int:
        return sum(each.last - each.first + 1 for each in self.ranges)


class Reading(NamedTuple):
    """Batches that were read for one member, before anybody is given records of them."""

    offset: int
    fetched: PartitionFetched


class Shared(NamedTuple):
    """For all share partitions of a broker."""

    replicas: ReplicaManager
    states: ShareStateCalls
    letters: LetterWriter
    clock: Clock


class SharePartition:
    """`config` returns the settings of the group, which may change."""

    def __init__(
        self, key: SharePartitionKey, leader: Leader, shared: Shared, config: Callable[[], GroupConfig]
    ) -> None:
        self.key = key
        self.leader = leader
        self.leader_epoch = leader.state.leader_epoch
        self.waiting: dict[object, Callable[[], None]] = {}  # whom to wake, once each
        self.is_ended = False
        self._replicas, self._states, self._letters, self._clock = shared
        self._config = config
        self._letters_due: list[events.SendLetters] = []
        self._sending: asyncio.Task[None] | None = None
        self._at = IdPartition(key.topic_id, key.partition)
        self._state = SharePartitionState()
        self._state_epoch = 0
        self._failed = ErrorCode.NONE  # why it could not be loaded
        self._is_reading = False
        self._turns: list[Callable[[], None]] = []
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Answer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.loaded = asyncio.ensure_future(self._load())
        self.loaded.add_done_callback(self._loaded)

    @property
    def is_over(self) -> bool:
        return self.is_ended or self.leader.is_over

    def end(self) -> None:
        """Nobody is given anything from here any more; a write that is on its way ends by itself."""
        self.is_ended = True
        self.loaded.cancel()
        if self._sending is not None:  # the next leader writes the letters
            self._sending.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.wake()

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for wake in waiting.values():
            wake()

    # ------------------------------------------------------------------ loading

    async def _load(self) -> None:
        """Raises: KafkaError: the state cannot be had."""
        found = await self._states.read(self.key.group_id, self._at, self.leader_epoch)
        if found.error:
            raise KafkaError(_TOLD.get(found.error, found.error))
        self._state_epoch, start = found.state_epoch, found.start_offset
        if start == BY_RESET:
            start = await self._reset()
            # Stored at once: else a next leader would begin at a later end of the log.
            written = Written(self._state_epoch, self.leader_epoch, start, 0, ())
            if error := await self._states.write(self.key.group_id, self._at, written):
                raise KafkaError(_TOLD.get(error, error))
        self._state = load(start, found.batches)
        self._post(events.LogStarts(self.leader.replica.start))
        self._send(letters_of(self._state, self._terms()))

    def _loaded(self, loaded: asyncio.Future[None]) -> None:
        if not loaded.cancelled() and (error := loaded.exception()) is not None:
            logger.info("share-partition=%s is not loaded: %s", self.key, error)
            self._failed = code_of(error) if isinstance(error, PylogError) else ErrorCode.UNKNOWN_SERVER_ERROR
            asyncio.get_running_loop().call_later(RETRY_S, self.end)
        else:
            self.wake()

    async def _reset(self) -> int:
        """Return where the group begins: see share.auto.offset.reset. Raises: KafkaError."""
        config, leader = self._config(), self.leader
        if config.share_auto_offset_reset == "earliest":
            return leader.replica.start
        if not leader.state.is_settled:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the end of the log is not known yet")
        if (age_ms := config.reset_ms) is not None:
            time_ms = self._clock.now_ms() - age_ms
            found = await self._replicas.offset_for_time(leader.replica.tp, TimeMs(time_ms))
            if found.error_code:
                raise KafkaError(found.error_code)
            if found.offset >= 0:
                return found.offset
        return leader.high_watermark

    # ------------------------------------------------------------------ reading

    def has_more(self) -> bool:
        """Return whether a member may get something, as far as is known without a look at the log."""
        if self.is_over or not self.loaded.done() or self._failed:
            return False
        offset = next_offset(self._state, self._terms())
        return offset is not None and offset < self.leader.high_watermark

    async def read(self, max_bytes: int, wake: Callable[[], None]) -> Reading | None:
        """Read from where somebody may be given records; None: nobody is now.

        The caller calls `give` or `leave`. One reads at a time: `wake` is called after another one has read.
        Raises: KafkaError: the log cannot be read.
        """
        if self._is_reading:
            self._turns.append(wake)
            return None
        if not self.has_more():
            return None
        self._is_reading = True
        try:
            while (offset := next_offset(self._state, self._terms())) is not None:
                fetched = await self._fetch(offset, max_bytes)
                if fetched.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    break
                if self.leader.replica.start <= offset:
                    break
                self._post(events.LogStarts(self.leader.replica.start))
        except BaseException:
            self.leave()
            raise
        if offset is not None and not fetched.error_code and len(fetched.records):
            return Reading(offset, fetched)
        self.leave()
        if offset is None or fetched.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            return None
        raise KafkaError(ErrorCode(fetched.error_code))

    def leave(self) -> None:
        """Let others read."""
        self._is_reading = False
        turns, self._turns = self._turns, []
        for wake in turns:
            wake()

    def give(self, reading: Reading, wanted: Wanted, records_max: int) -> Given:
        """Give the member records of what was read."""
        records = reading.fetched.records
        found = list(batch.batches(records))
        ranges = [Range(header.base_offset, header.next_offset - 1) for _, header in found]
        given: Sequence[AcquiredRange] = ()
        if not self.is_over:
            given = self._post(
                events.Acquire(
                    member=wanted.member,
                    offset=reading.offset,
                    batches=ranges,
                    aborted=_aborted(records, reading.fetched.aborted or ()),
                    records_max=records_max,
                    batch_records=wanted.batch_records,
                    is_exact=wanted.is_exact,
                )
            )
        self.leave()
        if not given:
            return Given()
        first, last = given[0].first, given[-1].last
        inside = [(at, header) for at, header in found if header.base_offset <= last and header.next_offset > first]
        begin, (at, header) = inside[0][0], inside[-1]
        return Given(memoryview(records)[begin : at + header.size_bytes], given)

    async def _fetch(self, offset: int, max_bytes: int) -> PartitionFetched:
        tp = self.leader.replica.tp
        is_committed = self._config().share_isolation_level == "read_committed"
        found = await self._replicas.fetch(
            {tp: FetchPartition(tp.partition, offset, max_bytes, -1)},
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation=Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED,
        )
        return found[tp]

    # ------------------------------------------------------------------ acknowledging

    async def acknowledge(self, member: str, parts: Sequence[Acknowledgement]) -> events.Answer:
        """Return once it is stored, or refused."""
        return await self._ask(lambda number: events.Acknowledge(request=number, member=member, acknowledgements=parts))

    async def release(self, member: str) -> events.Answer:
        """Have others get the member's records; return once that is stored."""
        return await self._ask(lambda number: events.Release(request=number, member=member))

    async def _ask(self, make: Callable[[int], events.Event]) -> events.Answer:
        if not self.loaded.done():
            await asyncio.wait((self.loaded,))
        if self.is_over or self._failed:
            return events.Answer(0, self._failed or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        number = next(self._requests)
        asked = self._asking[number] = asyncio.get_running_loop().create_future()
        self._post(make(number))
        answer: events.Answer = await asked
        return events.Answer(number, _TOLD.get(answer.error, answer.error), answer.message)

    # ------------------------------------------------------------------ the machine

    def _terms(self) -> ShareTerms:
        config = self._config()
        return ShareTerms(
            config.share_delivery_count_limit,
            config.share_record_lock_duration_ms,
            config.share_partition_max_record_locks,
            config.share_renew_acknowledge_enable,
            bool(config.errors_deadletterqueue_topic_name),
        )

    def _post(self, event: events.Event) -> Sequence[AcquiredRange]:
        self._state, effects = step(self._state, event, self._clock.monotonic_ms(), self._terms())
        given: Sequence[AcquiredRange] = ()
        for effect in effects:
            match effect:
                case events.Acquired(ranges):
                    given = ranges
                case events.Answer(request):
                    asked = self._asking.pop(request)
                    if not asked.done():
                        asked.set_result(effect)
                case events.Store():
                    self._store(effect)
                case events.SendLetters():
                    self._send((effect,))
        self._arm()
        if isinstance(event, events.Stored):
            self.wake()
        return given

    def _store(self, store: events.Store) -> None:
        loop = asyncio.get_running_loop()
        if self.is_over:
            stored = events.Stored(store.write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            loop.call_soon(self._post, stored)
            return
        task = loop.create_task(self._write(store))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, store: events.Store) -> None:
        written = Written(
            self._state_epoch, self.leader_epoch, store.start_offset, store.delivery_complete_count, store.batches
        )
        error = await self._states.write(self.key.group_id, self._at, written)
        if error in _FENCED:
            logger.info("share-partition=%s epoch=%d is fenced: %s", self.key, self.leader_epoch, error.name)
            self.end()
        self._post(events.Stored(store.write, error))

    # ------------------------------------------------------------------ dead letters

    @property
    def is_sending(self) -> bool:
        """Are dead letters on their way, or what became of them?"""
        return not self.is_over and (self._sending is not None or bool(self._state.writing))

    async def sent(self) -> None:
        """Return once no dead letter is on its way."""
        while self.is_sending:
            await asyncio.wait([task for task in (self._sending, *self._tasks) if task is not None])

    def _send(self, letters: Sequence[events.SendLetters]) -> None:
        self._letters_due += letters
        if self._letters_due and self._sending is None and not self.is_over:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send what is due, one after the other: those that come meanwhile are sent together."""
        try:
            while self._letters_due:
                letters, self._letters_due = self._letters_due, []
                source = Source(self.key.group_id, self.leader.replica.tp, lambda: self.is_over)
                async with aclosing(self._letters.write(source, self._config(), letters)) as written:
                    async for sent in written:
                        self._post(sent)
        finally:
            self._sending = None

    # ------------------------------------------------------------------ locks

    def _arm(self) -> None:
        """Set the timer for the first lock that is over. One that is early does no harm."""
        due_ms = None if self.is_over else deadline_ms(self._state)
        if due_ms is None or (self._timer is not None and self._due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms, left_ms = due_ms, due_ms - self._clock.monotonic_ms()
        # One that is over already could not be let go: not again at once.
        pause_s = left_ms / 1000 if left_ms > 0 else RETRY_S
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.is_over:
            self.end()
        else:
            self._post(events.Ticked())


def _aborted(records: Buffer, transactions: Sequence[Aborted]) -> list[Range]:
    """Return the batches of aborted transactions among these."""
    found: list[Range] = []
    coming = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
    aborting: set[int] = set()
    for at, header in batch.batches(records) if coming else ():
        while coming and coming[-1].first_offset < header.next_offset:
            aborting.add(coming.pop().producer_id)
        if header.is_control:
            marker = marker_of(records, at)
            if marker is not None and marker.kind == "ABORT":
                aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            found.append(Range(header.base_offset, header.next_offset - 1))
    return found
