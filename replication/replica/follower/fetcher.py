"""Fetchers: send the requests of this broker's followers to their leaders, many partitions in one request.

There are `num.replica.fetchers` connections per leader, and a spare one. Each takes all waiting requests, and lets the
followers append an answer before it asks again, so that they go together. A follower is on one connection only.

While all other connections wait at the leader for records, the spare one takes new requests, so that those are not
delayed. It waits for moments only, and gives its followers away once another connection is back. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import BrokerId, TopicPartition, names_of, rows_by_topic
from replication.model.metadata import Metadata
from replication.network.client import Client
from replication.network.loops import is_set_within
from replication.network.security import PLAINTEXT, Security
from replication.protocol.apis import ApiKey
from replication.protocol.messages import PartitionFetched
from replication.replica.follower.follower import Follower
from replication.replica.follower.session import Key, Session, SessionPartition
from replication.replica.machine.follower import AskEpochEnd, EpochEndAnswered, Fetch, OutOfRange, is_no_news

logger = logging.getLogger(__name__)

APPEND_S = 1.0  # for the followers of one answer to append it; slower ones ask later, on their own
IDLE_WAITS = 4
# While the spare connection is in use, requests wait for a moment only; longer with many partitions, since each of them
# costs about 15 µs per request.
SPARE_WAIT_MS, SPARE_PARTITIONS_PER_MS = 20, 20

_Questions = dict[Follower, AskEpochEnd | Fetch]


class Fetchers:
    """`broker_epoch` returns that of this broker's present life."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        broker_epoch: Callable[[], int],
        security: Security | Callable[[], Security] = PLAINTEXT,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.broker_epoch = broker_epoch
        self._security = security
        self._leaders: dict[BrokerId, _LeaderFetcher] = {}

    def ask(self, role: Follower, question: AskEpochEnd | Fetch) -> None:
        fetcher = self._leaders.get(role.leader)
        if fetcher is None:
            fetcher = self._leaders[role.leader] = _LeaderFetcher(self, role.leader)
        fetcher.ask(role, question)

    def settled(self, role: Follower) -> None:
        if (fetcher := self._leaders.get(role.leader)) is not None:
            fetcher.settled(role)

    def forget(self, role: Follower) -> None:
        """Drop the role's request; drop the connections to a leader that nobody follows."""
        fetcher = self._leaders.get(role.leader)
        if fetcher is not None and fetcher.forget(role):
            del self._leaders[role.leader]
            fetcher.close()

    def connect(self, broker: BrokerId) -> Client:
        """Return a connection, which the caller closes. Raises: ConnectionError: the broker's address is unknown."""
        address = self.metadata.address(broker)
        if address is None:
            raise ConnectionError(f"the address of broker {broker} is unknown")
        name, timeout_ms = f"broker-{self.config.broker_id}", self.config.replica_socket_timeout_ms
        return Client(*address, name, timeout_ms=timeout_ms, security=self._security)

    def close(self) -> None:
        leaders, self._leaders = self._leaders, {}
        for fetcher in leaders.values():
            fetcher.close()


class _LeaderFetcher:
    def __init__(self, fetchers: Fetchers, leader: BrokerId) -> None:
        self.fetchers = fetchers
        self.leader = leader
        self._roles: set[Follower] = set()  # all that follow this leader
        self._waiting: _Questions = {}
        self._connections = [_Connection(self) for _ in range(fetchers.config.num_replica_fetchers)]
        self._spare = _Connection(self, is_spare=True)
        self._connections.append(self._spare)
        self._is_spare_needed = True

    def ask(self, role: Follower, question: AskEpochEnd | Fetch) -> None:
        """Keep the role on its last connection; otherwise give it to the first idle one."""
        self._roles.add(role)
        if not any(connection.keep(role, question) for connection in self._connections):
            self.offer(role, question)

    def offer(self, role: Follower, question: AskEpochEnd | Fetch) -> None:
        self._waiting[role] = question
        for connection in self._connections:
            if connection.is_idle:
                connection.wake()
                return

    def settled(self, role: Follower) -> None:
        for connection in self._connections:
            connection.settled(role)

    def forget(self, role: Follower) -> bool:
        self._roles.discard(role)
        self._waiting.pop(role, None)
        for connection in self._connections:
            connection.forget(role)
        return not self._roles

    def take(self, taker: _Connection) -> _Questions:
        """Return all requests that wait. The spare connection gets none once another one is back or idle."""
        if taker is not self._spare:
            self._is_spare_needed = self._spare.is_idle
        elif not self._is_spare_needed or any(other.is_idle for other in self._connections):
            self._is_spare_needed = True  # for the next new request
            return {}
        taken, self._waiting = self._waiting, {}
        if taker is not self._spare:
            self._spare.let_go(taken)
        return taken

    @property
    def is_gathering(self) -> bool:
        """Return whether the spare connection has followers that another connection must take over."""
        return not self._spare.is_idle

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class _Connection:
    """One connection to a leader, and the followers on it: from one request to their next."""

    def __init__(self, owner: _LeaderFetcher, *, is_spare: bool = False) -> None:
        self.is_idle = False
        self._owner = owner
        self._is_spare = is_spare
        self._fetchers = owner.fetchers
        self._roles: set[Follower] = set()
        self._waiting: _Questions = {}
        self._session = Session(owner.fetchers.config, is_single=is_spare)
        self._appending: set[Follower] = set()  # of the last answer
        self._has_work, self._all_appended = asyncio.Event(), asyncio.Event()
        self._empty_answers = 0  # in a row
        self._client: Client | None = None
        self._address: tuple[str, int] | None = None
        self._task = asyncio.ensure_future(self._run())

    def keep(self, role: Follower, question: AskEpochEnd | Fetch) -> bool:
        if role not in self._roles:
            return False
        if self._is_spare:
            self._owner.offer(role, question)
        else:
            self._waiting[role] = question
        return True

    def wake(self) -> None:
        self._has_work.set()

    def settled(self, role: Follower) -> None:
        if role in self._roles:
            self._look_at_appends()

    @property
    def _is_appending(self) -> bool:
        return any(role.jobs for role in self._appending)

    def forget(self, role: Follower) -> None:
        self._waiting.pop(role, None)
        self._session.forget(role)
        self.let_go((role,))

    def let_go(self, roles: Iterable[Follower]) -> None:
        self._roles.difference_update(roles)
        self._appending.difference_update(roles)
        self._look_at_appends()

    def _look_at_appends(self) -> None:
        """Wake the task that waits for all followers. If none waits, do not look at them: there may be thousands."""
        if not self._all_appended.is_set() and not self._is_appending:
            self._all_appended.set()

    def close(self) -> None:
        self._task.cancel()
        if self._client is not None:
            self._client.close()

    # -------------------------------------------------------------------- task

    async def _run(self) -> None:
        while True:
            questions = {**self._waiting, **self._owner.take(self)}
            self._waiting = {}
            self._roles.difference_update(self._appending)  # those that have not asked again go on alone
            self._appending.clear()
            self._roles.update(questions)
            self._drop_offline()
            if not questions and not self._session.in_session:
                self._session.end()  # nothing stands
                self._roles.clear()
                self.is_idle = True
                await self._has_work.wait()
                self._has_work.clear()
                self.is_idle = False
                continue
            try:
                await self._ask_all(questions)
            except (OSError, TimeoutError, ProtocolError) as error:
                logger.info("leader=%d does not answer: %s", self._owner.leader, error)
                questions.update(self._session.end())  # what was parked at the leader is gone
            except Exception:  # the other followers must go on
                logger.exception("leader=%d fetching failed", self._owner.leader)
                questions.update(self._session.end())  # what was parked at the leader is gone
            self._roles.difference_update(questions)
            _ask_later(questions)  # only unanswered ones are left
            await self._let_append()

    def _drop_offline(self) -> None:
        """An offline replica asks nothing: see `Follower.is_offline`."""
        any_role = next(iter(self._roles), None)
        if any_role is None or not any_role.replica.host.offline.is_any_said:
            return
        for role, fetch, _ in tuple(self._session.in_session.values()):
            if role.is_offline:
                self.forget(role)
                role.ask_again(fetch)

    async def _let_append(self) -> None:
        """Wait until the followers have appended the answers; slow ones go alone."""
        if self._is_appending:
            self._all_appended.clear()
            await is_set_within(self._all_appended, APPEND_S)

    async def _ask_all(self, questions: _Questions) -> None:
        """Send the requests, and pass the answers to the roles; answered ones are removed from `questions`."""
        client = self._connected()
        ends = {role: asked for role, asked in questions.items() if isinstance(asked, AskEpochEnd)}
        fetches = {role: asked for role, asked in questions.items() if isinstance(asked, Fetch)}
        if ends:
            asked = {role: (question.leader_epoch, question.epoch) for role, question in ends.items()}
            for role, (epoch, end_offset) in (await self._ends(client, asked)).items():
                question = ends[role]
                del questions[role]
                role.step(EpochEndAnswered(question.leader_epoch, question.epoch, epoch, end_offset))
        else:
            allowed = self._without_held_back(fetches, questions)
            if allowed or self._session.in_session:
                await self._fetch(client, allowed, questions)
        if ends and fetches:
            for role, fetch in fetches.items():  # they go in the next round, with the truncated followers
                del questions[role]
                self.keep(role, fetch)

    def _without_held_back(self, fetches: dict[Follower, Fetch], questions: _Questions) -> Mapping[Follower, Fetch]:
        """Return the requests to send now; those that the quota holds back are put off, and leave `questions`."""
        held: _Questions = {role: fetch for role, fetch in fetches.items() if role.is_throttled}
        if not held or (quota := next(iter(held)).replica.host.follower_quota).left_bytes():
            return fetches
        for role in held:
            del questions[role]
        asyncio.get_running_loop().call_later(quota.wait_ms() / 1000, _ask_again, held)
        return {role: fetch for role, fetch in fetches.items() if role not in held}

    def _connected(self) -> Client:
        address = self._fetchers.metadata.address(self._owner.leader)
        if self._client is None or address != self._address:
            if self._client is not None:
                self._client.close()
                self._client = None
            self._client, self._address = self._fetchers.connect(self._owner.leader), address
        return self._client

    async def _ends(self, client: Client, asked: Mapping[Follower, tuple[int, int]]) -> dict[Follower, tuple[int, int]]:
        """Return where these epochs (leader epoch, epoch in question) end; those that failed are left out."""
        roles = {role.replica.tp: role for role in asked}
        topics = [
            {"topic": name, "partitions": [_epoch_question(role, *asked[role]) for role in group]}
            for name, group in rows_by_topic((role.replica.tp, role) for role in asked).items()
        ]
        request = {"replica_id": self._fetchers.config.broker_id, "topics": topics}
        response = await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        found = {}
        for topic in response.topics:
            for row in topic.partitions:
                role = roles.get(TopicPartition(topic.topic, row.partition))
                if role is not None and not int(row.error_code):
                    found[role] = (row.leader_epoch, row.end_offset)
        return found

    async def _fetch(self, client: Client, fetches: Mapping[Follower, Fetch], questions: _Questions) -> None:
        session = self._session
        request = session.request(fetches, self._wait_ms(len(fetches)), self._fetchers.broker_epoch())
        for role in fetches:  # from now on they stand, until they are answered
            questions.pop(role)
        response = await client.call(ApiKey.FETCH, request)
        if response.error_code:
            raise ProtocolError(f"error {response.error_code} for fetch session {request.session_id}")
        self._empty_answers += 1
        failed: list[tuple[SessionPartition, PartitionFetched]] = []
        for topic in response.topics:
            for row in topic.partitions:
                key = topic.topic_id, row.partition
                known = session.in_session.get(key)
                if known is not None and row.error_code:
                    failed.append((session.in_session.pop(key), row))
                elif known is not None:
                    self._answered(key, known, row)
        questions.update((known.role, known.fetch) for known, _ in failed)
        again = session.answered(request, response)
        if self._is_spare:
            questions.update(again)
        elif again:
            self._waiting = {**again, **self._waiting}
        if failed:
            await self._failed(client, failed, questions)

    async def _failed(
        self, client: Client, failed: Iterable[tuple[SessionPartition, PartitionFetched]], questions: _Questions
    ) -> None:
        beyond: dict[Follower, tuple[Fetch, PartitionFetched]] = {}
        refused: dict[int, list[TopicPartition]] = {}
        for (role, asked, _), row in failed:
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                beyond[role] = asked, row
            else:
                refused.setdefault(row.error_code, []).append(role.replica.tp)
        for code, tps in refused.items():  # in one line: while leaderships move, there may be thousands
            logger.info(
                "leader=%d refuses to be followed: error=%d partitions=%s",
                self._owner.leader,
                code,
                names_of(tps),
            )
        if beyond:
            await self._find_extent(client, beyond, questions)

    def _answered(self, key: Key, known: SessionPartition, row: PartitionFetched) -> None:
        role, asked, start = known
        role.note_answer(row.high_watermark, len(row.records))
        is_idle = role.is_over or role.is_offline
        is_news = (
            len(row.records) or is_idle or not is_no_news(role.state, asked, row.high_watermark, row.log_start_offset)
        )
        if not is_news and not self._is_spare and start == role.replica.start:
            return  # it stands
        del self._session.in_session[key]
        if not row.records:
            self._session.forgotten.add(key)  # unless it asks again
        if not is_news:
            self.keep(role, asked)
            return
        self._empty_answers = 0
        self._appending.add(role)
        role.fetched(asked.leader_epoch, asked.offset, row.records, row.high_watermark, row.log_start_offset)

    def _wait_ms(self, partitions: int) -> int:
        """Return how long the leader may wait: up to `IDLE_WAITS` times as long while nothing comes."""
        config = self._fetchers.config
        if self._owner.is_gathering:
            moment_ms = SPARE_WAIT_MS + partitions // SPARE_PARTITIONS_PER_MS
            return min(moment_ms, config.replica_fetch_wait_max_ms)
        longest_ms = max(config.replica_fetch_wait_max_ms, config.replica_lag_time_max_ms // 4)
        return min(config.replica_fetch_wait_max_ms * min(1 + self._empty_answers, IDLE_WAITS), longest_ms)

    async def _find_extent(
        self,
        client: Client,
        beyond: Mapping[Follower, tuple[Fetch, PartitionFetched]],
        questions: _Questions,
    ) -> None:
        """The leader lacks the requested offsets: tell the roles the extent of its log."""
        asked = {role: (question.leader_epoch, question.leader_epoch) for role, (question, _) in beyond.items()}
        for role, (_, end_offset) in (await self._ends(client, asked)).items():
            question, row = beyond[role]
            del questions[role]
            start = row.log_start_offset
            role.step(OutOfRange(question.leader_epoch, question.offset, start, max(start, end_offset)))


def _ask_later(questions: _Questions) -> None:
    """Ask the same after a pause, with one timer for all that pause as long."""
    paused: dict[int, _Questions] = {}
    for role, question in questions.items():
        if (pause_ms := role.failed(question)) is not None:
            paused.setdefault(pause_ms, {})[role] = question
    for pause_ms, same in paused.items():
        asyncio.get_running_loop().call_later(pause_ms / 1000, _ask_again, same)


def _ask_again(questions: _Questions) -> None:
    for role, question in questions.items():
        role.ask_again(question)


def _epoch_question(role: Follower, leader_epoch: int, epoch: int) -> dict[str, int]:
    return {
        "partition": role.replica.tp.partition,
        "current_leader_epoch": leader_epoch,
        "leader_epoch": epoch,
    }
