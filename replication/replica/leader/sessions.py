"""Fetch sessions: what the connections of followers ask for, so that partitions without news cost nothing.

A request names the partitions that are new in its session, or that it asks for anew. Whatever else is in it *stands*:
it is asked for again with every request, in one note for all (`asked_ms`). An answer tells of the partitions named,
of those with records, an error or another log start, and of those whose high watermark has moved. What was answered
with records or an error has left the session, and is named again when the follower is ready for more.

A partition is looked at if it was named, or was woken since: by an append, a move of the log's start, damage, or the
end of the role. Parked requests wait for that, and look once for all that came in a turn of the loop. As long as all
is in memory no task is needed. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from logstore.env import Clock
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import NO_EPOCH, BrokerId, TopicPartition
from replication.network import steps
from replication.network.steps import STEP_ITEMS, step
from replication.protocol.messages import (
    FIRST_REQUEST,
    FULL_SESSIONS,
    FetchPartition,
    PartitionFetched,
    next_session_epoch,
)
from replication.replica.leader.fetches import Found, Reading, is_enough, read, ready
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import FetchTerms
from replication.replica.machine import isr

Response = TypeVar("Response")
UNUSED_MS = 60_000  # a session that long without a request is of a connection that has ended


class _Row(Reading):
    """A partition of a session. `Standing`, while its follower has all."""

    __slots__ = ("session",)
    leader: Leader

    def __init__(self, tp: TopicPartition, asked: FetchPartition, leader: Leader, session: FetchSession) -> None:
        if asked.current_leader_epoch == NO_EPOCH:  # then it asks in this one: in the next its followers are unknown
            asked = asked._replace(current_leader_epoch=leader.state.leader_epoch)
        super().__init__(tp, asked, leader)
        self.session = session

    @property
    def asked_ms(self) -> int:
        return self.session.asked_ms

    @property
    def event(self) -> isr.Fetched:
        session = self.session
        return isr.Fetched(session.replica_id, self.asked.fetch_offset, session.asked_ms, session.replica_epoch)

    def renew(self) -> None:
        self.session.again[self.tp] = self

    def tell(self) -> None:
        self.session.untold[self.tp] = self

    def wake(self) -> None:
        self.session.woken(self)

    def must_answer(self, terms: FetchTerms) -> bool:
        return self.leader.replica.ends_early or super().must_answer(terms)

    def answer(self, terms: FetchTerms) -> PartitionFetched:
        leader = self.leader
        if leader.replica.ends_early and not leader.is_over:
            return leader.refused(ErrorCode.KAFKA_STORAGE_ERROR)
        return super().answer(terms)


class FetchSession:
    """`number` 0: of one request only."""

    def __init__(
        self,
        number: int,
        replica: tuple[BrokerId, int],
        leader_of: Callable[[TopicPartition], Leader],
        clock: Clock,
    ) -> None:
        self.number = number
        self.replica_id, self.replica_epoch = replica
        self.next_epoch = 1
        self.asked_ms = clock.monotonic_ms()
        self.is_asking = self.is_closed = False  # a request is not answered yet; there will be none
        self.topic_ids: dict[str, uuid.UUID | None] = {}  # by the names of the topics
        self.rows: dict[TopicPartition, _Row] = {}
        self.again: dict[TopicPartition, _Row] = {}  # to be admitted again, until they are in sync
        self.untold: dict[TopicPartition, _Row] = {}  # of which the next answer tells
        self._changed: dict[TopicPartition, _Row] = {}  # to be looked at
        self._refused: Found = {}
        self._leader_of, self._clock = leader_of, clock
        self._wake: Callable[[], None] | None = None

    def close(self) -> None:
        self.is_asking, self.is_closed = False, True
        for tp in tuple(self.rows):
            self.drop(tp)

    def fetch(
        self,
        wanted: Mapping[TopicPartition, FetchPartition],
        forgotten: Iterable[TopicPartition],
        terms: FetchTerms,
        respond: Callable[[Found], Response],
    ) -> Response | asyncio.Future[Response]:
        """What `respond` makes of the answer, now or later. One request at a time."""
        self.is_asking = True
        taking = self._take(wanted, forgotten, terms)
        request = _Request(self, terms, respond)
        try:
            is_over, _ = steps.advance(taking, STEP_ITEMS)
            if not is_over:
                request.go_on(self._fetch(taking, terms))
            return request.begin()
        except Exception:
            self.close()
            raise

    async def _fetch(self, taking: Iterator[None], terms: FetchTerms) -> Found:
        await steps.run(taking, STEP_ITEMS)
        return await self.wait(terms)

    # -------------------------------------------------------------------- what is asked

    def _take(
        self, wanted: Mapping[TopicPartition, FetchPartition], forgotten: Iterable[TopicPartition], terms: FetchTerms
    ) -> Iterator[None]:
        """Note what a request asks for, and asks for again."""
        self.asked_ms = self._clock.monotonic_ms()
        for tp in forgotten:
            self.drop(tp)
        known = [row for row in (*self.again.values(), *self._changed.values()) if row.tp not in wanted]
        for tp, asked in wanted.items():
            self.drop(tp)
            try:
                row = _Row(tp, asked, self._leader_of(tp), self)
            except KafkaError as error:
                self._refused[tp] = PartitionFetched(tp.partition, error.code)
            else:
                self.rows[tp] = self.untold[tp] = self._changed[tp] = row
                self._admit(row, terms)
            yield
        for row in known:
            if self.rows.get(row.tp) is row:
                self._admit(row, terms)
            yield

    def _admit(self, row: _Row, terms: FetchTerms) -> None:
        leader, follower, tp = row.leader, self.replica_id, row.tp
        refused = leader.admit(row.asked, terms)
        if refused is not None:
            self.drop(tp)
            self._refused[tp] = refused
            return
        if row.asked.fetch_offset >= leader.state.log_end_offset:
            leader.standing[follower] = row
        if follower not in leader.state.isr:
            self.again[tp] = row
        else:
            self.again.pop(tp, None)

    def drop(self, tp: TopicPartition) -> None:
        row = self.rows.pop(tp, None)
        if row is None:
            return
        for rows in (self.again, self.untold, self._changed):
            rows.pop(tp, None)
        follower, leader = self.replica_id, row.leader
        if leader.standing.get(follower) is row:
            del leader.standing[follower]
        if leader.replica.followers.get(follower) == row.wake:
            del leader.replica.followers[follower]

    def woken(self, row: _Row) -> None:
        if self.rows.get(row.tp) is row:
            self._changed[row.tp] = row
            if self._wake is not None:
                self._wake()

    # -------------------------------------------------------------------- what is answered

    def read(self, terms: FetchTerms) -> bool:
        """Take what is there from memory. False: the disk or a quota must be asked, or it is much."""
        if len(self._changed) > STEP_ITEMS:
            return False
        left_bytes = min(terms.max_bytes, terms.room_bytes())
        for row in self._changed.values():
            row.result = None
            if row.look(terms):
                if left_bytes <= 0 or row.is_throttled(terms):
                    return False
                if not row.read_recent(left_bytes, terms.isolation):
                    return False
                left_bytes -= row.size_bytes
        return True

    def is_enough(self, terms: FetchTerms) -> bool:
        if self._is_due(terms):
            return True
        size_bytes = 0
        for row in self._changed.values():
            if row.must_answer(terms):
                return True
            size_bytes += row.size_bytes
        return size_bytes >= terms.min_bytes

    def _is_due(self, terms: FetchTerms) -> bool:
        return bool(self._refused) or not self.rows or terms.max_wait_ms <= 0

    def park(self, wake: Callable[[], None], terms: FetchTerms) -> None:
        """Have `wake` called when there is something to look at."""
        self._wake = wake
        for row in tuple(self._changed.values()):
            self._settle(row, terms)

    def unpark(self) -> None:
        self._wake = None

    def _settle(self, row: _Row, terms: FetchTerms) -> None:
        """Have what comes wake it. It need not be looked at before, unless something is left there."""
        row.leader.replica.followers[self.replica_id] = row.wake
        if row.asked.fetch_offset >= row.upper and not row.has_more(terms):
            row.result = None
            self._changed.pop(row.tp, None)

    def answer(self, terms: FetchTerms) -> Iterator[None]:
        """Make the answer: see `answered`."""
        found = self._refused
        for tp, row in {**self._changed, **self.untold}.items():
            if tp in self.untold or row.size_bytes or row.must_answer(terms):
                found[tp] = told = row.answer(terms)
                self.untold.pop(tp, None)
                if told.records or told.error_code:
                    self.drop(tp)
            row.result = None
            if tp in self._changed:
                self._settle(row, terms)
            yield

    def answered(self) -> Found:
        """The answer that was made; with it the request is over."""
        found, self._refused = self._refused, {}
        self.is_asking = False
        if not self.number:
            self.close()
        return found

    async def wait(self, terms: FetchTerms) -> Found:
        """The answer, where memory does not have it all."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + terms.max_wait_ms / 1000
        must_answer = self._is_due(terms)
        while True:
            rows = list(self._changed.values())
            some = cast("list[Reading]", rows)
            await read(await ready(some, terms), terms)
            if must_answer or await is_enough(some, terms):
                break
            must_answer = not await self._news(rows, terms, deadline_s)
        await steps.run(self.answer(terms), STEP_ITEMS)
        return self.answered()

    async def _news(self, rows: Iterable[_Row], terms: FetchTerms, deadline_s: float) -> bool:
        """Wait until there is something to look at; False if the time was over before."""
        loop = asyncio.get_running_loop()
        news: asyncio.Future[bool] = loop.create_future()

        def wake(in_time: bool = True) -> None:
            if not news.done():
                news.set_result(in_time)

        timers = [loop.call_at(deadline_s, wake, False)]
        if held := [row for row in rows if not row.quota_bytes]:
            wait_s = held[0].leader.replica.host.leader_quota.wait_ms() / 1000
            timers.append(loop.call_at(min(deadline_s, loop.time() + wait_s), wake))
        self._wake = wake
        try:
            for number, row in enumerate(rows, 1):
                if number % STEP_ITEMS == 0:
                    await step()
                self._settle(row, terms)
                if row.has_more(terms):  # it came before it could wake this
                    return True
            return await news
        finally:
            self._wake = None
            for timer in timers:
                timer.cancel()


class _Request(Generic[Response]):
    """One request of a session, until it is answered."""

    def __init__(self, session: FetchSession, terms: FetchTerms, respond: Callable[[Found], Response]) -> None:
        self._session, self._terms, self._respond = session, terms, respond
        self._is_woken = False
        self._task: asyncio.Task[Found] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Response | asyncio.Future[Response]:
        session, terms = self._session, self._terms
        if self._task is None:
            if not session.read(terms):
                self.go_on(session.wait(terms))
            elif session.is_enough(terms):
                return self._answered()
        self._loop = loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Response] = loop.create_future()
        self._answer.add_done_callback(self._over)
        if self._task is None:
            self._deadline_s = loop.time() + terms.max_wait_ms / 1000
            self._timer = loop.call_at(self._deadline_s, self._look, True)
            session.park(self._wake, terms)
        return self._answer

    def go_on(self, work: Any) -> None:
        """Leave the rest to a task."""
        self._session.unpark()
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._fetched)

    def _answered(self) -> Response:
        for _ in self._session.answer(self._terms):
            pass
        return self._respond(self._session.answered())

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._look)

    def _look(self, is_late: bool = False) -> None:
        self._is_woken = False
        if self._answer.done() or self._task is not None:
            return
        session, terms = self._session, self._terms
        try:
            if not session.read(terms):
                left_s = 0 if is_late else max(0, self._deadline_s - self._loop.time())
                self.go_on(session.wait(terms._replace(max_wait_ms=int(1000 * left_s))))
            elif is_late or session.is_enough(terms):
                self._answer.set_result(self._answered())
            else:
                session.park(self._wake, terms)
        except Exception as error:  # noqa: BLE001  the server closes the connection, and logs it
            self._answer.set_exception(error)

    def _fetched(self, task: asyncio.Task[Found]) -> None:
        if self._answer.done():
            return
        if task.cancelled():
            self._answer.cancel()
            return
        try:
            self._answer.set_result(self._respond(task.result()))
        except Exception as error:  # noqa: BLE001  as above
            self._answer.set_exception(error)

    def _over(self, _: asyncio.Future[Response]) -> None:
        """It is answered, or nobody waits any more: then nobody asks for what stands, either."""
        if self._timer is not None:
            self._timer.cancel()
        self._session.unpark()
        if self._task is not None:
            self._task.cancel()
        if self._session.is_asking:
            self._session.close()


class FetchSessions:
    """Those of all followers, by their numbers."""

    def __init__(self, leader_of: Callable[[TopicPartition], Leader], clock: Clock) -> None:
        self._leader_of, self._clock = leader_of, clock
        self._sessions: dict[int, FetchSession] = {}
        self._numbers = itertools.count(1)

    def of(self, number: int, epoch: int, replica: tuple[BrokerId, int]) -> FetchSession:
        """The session of a request, its epoch noted. Raises: KafkaError: there is none, or it is not its turn."""
        found = self._sessions.get(number)
        is_its_own = found is not None and (found.replica_id, found.replica_epoch) == replica
        if epoch in FULL_SESSIONS:
            if found is not None and is_its_own:
                found.close()
                del self._sessions[number]
            session = FetchSession(0, replica, self._leader_of, self._clock)
            if epoch == FIRST_REQUEST:
                session.number = next(self._numbers)
                self._sessions[session.number] = session
            return session
        if found is None or found.is_closed or not is_its_own:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {number}")
        if found.is_asking or epoch != found.next_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"{epoch}: {found.next_epoch} is next")
        found.next_epoch = next_session_epoch(epoch)
        return found

    def sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for number, session in tuple(self._sessions.items()):
            if session.is_closed or (now_ms - session.asked_ms > UNUSED_MS and not session.is_asking):
                session.close()
                del self._sessions[number]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
