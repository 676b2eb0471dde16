"""ShareFetch and ShareAcknowledge (KIP-932): members of share groups get records, and say what became of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.moved import MOVED, current_leader
from replication.broker.share.machine.events import RENEW, Acknowledgement, Answer
from replication.broker.share.partition import Reading, SharePartition, Wanted
from replication.broker.share.partitions import SharePartitions
from replication.broker.share.sessions import CLOSING, OPENING, SessionKey, ShareSession
from replication.config.broker import BrokerConfig
from replication.coordinators.share_state.states import IdPartition
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition, topic_id_of, topic_uuid
from replication.model.features import SHARE_GROUPS
from replication.model.metadata import Metadata
from replication.network import steps
from replication.network.steps import STEP_ITEMS, all_of, in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey, EncodedBody
from replication.protocol.messages import CurrentLeader, NodeEndpoint
from replication.protocol.share_encoding import NO_LEADER, ShareFetched, ShareFetchResponse, share_fetch_steps
from replication.security.access import Operation, Resource

RENEW_FROM = 2  # the first version with renewals, and with a limit of records that is exact
EXACT = 1  # the mode that acquires no more records than the limit

Topics: TypeAlias = Sequence[requests.FetchTopic | requests.AcknowledgeTopic]
Parts: TypeAlias = dict[IdPartition, list[Acknowledgement]]
Rows: TypeAlias = dict[IdPartition, ShareFetched]


class _Refused(NamedTuple):
    error: ErrorCode
    message: str


class ShareHandlers:
    def __init__(self, config: BrokerConfig, shares: SharePartitions, metadata: Metadata, level: FeatureLevel) -> None:
        self._config = config
        self._shares = shares
        self._metadata = metadata
        self._level = level

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.SHARE_FETCH: self.fetch, ApiKey.SHARE_ACKNOWLEDGE: self.acknowledge}

    # ------------------------------------------------------------------ ShareFetch

    async def fetch(self, context: Work, body: requests.ShareFetchRequest) -> EncodedBody:
        """Store what is acknowledged, and wait for records as long as the member wants."""
        context.park()
        try:
            response = await self._fetch(context, body)
        except KafkaError as error:
            response = ShareFetchResponse(error_code=error.code, error_message=error.message or None)
        return EncodedBody(await steps.run(share_fetch_steps(response), STEP_ITEMS))

    async def _fetch(self, context: Work, body: requests.ShareFetchRequest) -> ShareFetchResponse:
        key = self._member(context, body.group_id, body.member_id)
        parts = await _parts(body.topics)
        if body.is_renew_ack:
            _check_renewal(body)
        session = await self._session(context, key, body, has_parts=any(parts.values()))
        is_fetching = body.share_session_epoch != CLOSING and not body.is_renew_ack
        acknowledging = asyncio.ensure_future(self._acknowledge(context, key, parts, is_renewal=body.is_renew_ack))
        try:
            rows = await self._read(context, body, session) if is_fetching else {}
        except BaseException:
            acknowledging.cancel()
            raise
        if body.share_session_epoch == OPENING:
            rows = {**{at: ShareFetched(at.partition) for at in session.partitions}, **rows}
        for at, answer in (await acknowledging).items():
            row = rows.get(at, ShareFetched(at.partition))
            rows[at] = row._replace(
                acknowledge_error_code=answer.error, acknowledge_error_message=answer.message or None
            )
        if body.share_session_epoch == CLOSING:
            await self._shares.close(key)
        lock_ms = self._shares.config(key.group_id).share_record_lock_duration_ms
        moved: dict[int, NodeEndpoint] = {}
        topics: dict[uuid.UUID | None, list[ShareFetched]] = {}
        async for chunk in in_steps(rows.items()):
            for at, row in chunk:
                if row.error_code in MOVED or row.acknowledge_error_code in MOVED:
                    row = row._replace(current_leader=self._leader(at, moved, context.listener))  # noqa: PLW2901
                topics.setdefault(topic_uuid(at.topic_id), []).append(row)
        return ShareFetchResponse(
            tuple(topics.items()), acquisition_lock_timeout_ms=lock_ms, node_endpoints=tuple(moved.values())
        )

    async def _session(
        self, context: Work, key: SessionKey, body: requests.ShareFetchRequest, *, has_parts: bool
    ) -> ShareSession:
        """Open the session, or go on with it. Raises: KafkaError."""
        sessions, epoch = self._shares.sessions, body.share_session_epoch
        if epoch == OPENING:
            if has_parts:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a request that opens a session acknowledges nothing")
            if context.is_gone:  # nobody would end the session
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
            try:
                session = sessions.open(key, context.connection_id)
            except KafkaError:
                await asyncio.sleep(max(0.0, body.max_wait.total_seconds()))
                raise
        else:
            session = sessions.find(key, epoch)
        if epoch != CLOSING:
            wanted = ((topic.topic_id, row.partition_index) for topic in body.topics for row in topic.partitions)
            async for chunk in in_steps(wanted):
                session.partitions.update((IdPartition(topic_id_of(each), number), None) for each, number in chunk)
            for topic in body.forgotten_topics_data:
                for number in topic.partitions:
                    session.partitions.pop(IdPartition(topic_id_of(topic.topic_id), number), None)
        return session

    async def _read(self, context: Work, body: requests.ShareFetchRequest, session: ShareSession) -> Rows:
        """Wait until there are records for the member, something failed, or its time or its session is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max(0.0, body.max_wait.total_seconds())
        max_bytes = min(body.max_bytes, self._config.fetch_max_bytes)
        group_id = session.key.group_id
        if max_bytes <= 0 or body.max_records <= 0:
            return {}
        wanted = Wanted(session.key.member_id, max(1, body.batch_size), body.share_acquire_mode == EXACT)
        while not session.is_over:
            news: asyncio.Future[None] = loop.create_future()

            def wake(news: asyncio.Future[None] = news) -> None:
                if not news.done():
                    news.set_result(None)

            rows: Rows = {}
            found: Mapping[IdPartition, SharePartition] = {}
            session.waiting[news] = wake
            try:
                found = await self._open(context, group_id, session, rows)
                for one in found.values():
                    one.waiting[news] = wake
                    one.leader.replica.consumers[news] = wake
                is_last = bool(rows) or loop.time() >= until_s
                room_bytes = min(max_bytes, context.room_bytes())
                readings = await self._readings(found, rows, room_bytes, wake)
                enough = is_last or sum(len(one.fetched.records) for one in readings.values()) >= body.min_bytes
                left = body.max_records if enough and not session.is_over else 0
                for at, reading in readings.items():
                    given = found[at].give(reading, wanted, left)
                    left -= given.given
                    if given.ranges:
                        rows[at] = ShareFetched(at.partition, records=given.records, acquired=given.ranges)
                if rows or is_last:
                    session.rotate(rows)
                    return rows
                await asyncio.wait((news,), timeout=until_s - loop.time())
            finally:
                session.waiting.pop(news, None)
                for one in found.values():
                    one.waiting.pop(news, None)
                    one.leader.replica.consumers.pop(news, None)
        return {}

    async def _open(
        self, context: Work, group_id: str, session: ShareSession, rows: Rows
    ) -> dict[IdPartition, SharePartition]:
        """Return the share partitions of the session; those that cannot be read get a row with an error."""
        found: dict[IdPartition, SharePartition] = {}
        async for chunk in in_steps(tuple(session.partitions)):
            hidden = self._hidden(context, chunk)  # a later step may know another id
            for at in chunk:
                try:
                    if at.topic_id in hidden:
                        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    found[at] = self._shares.open(group_id, at)
                except KafkaError as error:
                    rows[at] = ShareFetched(at.partition, error.code, error.message or None)
        return found

    async def _readings(
        self,
        found: Mapping[IdPartition, SharePartition],
        rows: Rows,
        max_bytes: int,
        wake: Callable[[], None],
    ) -> dict[IdPartition, Reading]:
        """Read the partitions one after the other, as far as the bytes allow; none is left locked by a failure."""
        readings: dict[IdPartition, Reading] = {}
        left = max_bytes
        try:
            for at, one in found.items():
                if left <= 0:
                    break
                try:
                    reading = await one.read(left, wake)
                except KafkaError as error:
                    rows[at] = ShareFetched(at.partition, error.code, error.message or None)
                    continue
                if reading is not None:
                    readings[at] = reading
                    left -= len(reading.fetched.records)
        except BaseException:
            for at in readings:
                found[at].leave()
            raise
        return readings

    # ------------------------------------------------------------------ ShareAcknowledge

    async def acknowledge(self, context: Work, body: requests.ShareAcknowledgeRequest) -> Response:
        context.park()
        try:
            key = self._member(context, body.group_id, body.member_id)
            epoch = body.share_session_epoch
            if epoch == OPENING:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "ShareFetch opens sessions")
            self._shares.sessions.find(key, epoch)
            answers = await self._acknowledge(context, key, await _parts(body.topics), is_renewal=body.is_renew_ack)
            if epoch == CLOSING:
                await self._shares.close(key)
        except KafkaError as error:
            return {
                "error_code": error.code,
                "error_message": error.message or None,
                "acquisition_lock_timeout": 0,
                "responses": (),
                "node_endpoints": (),
            }
        moved: dict[int, NodeEndpoint] = {}
        topics: dict[str, list[Response]] = {}
        for at, answer in answers.items():
            leader = self._leader(at, moved, context.listener) if answer.error in MOVED else None
            topics.setdefault(at.topic_id, []).append(
                {
                    "partition_index": at.partition,
                    "error_code": answer.error,
                    "error_message": answer.message or None,
                    "current_leader": (leader or NO_LEADER)._asdict(),
                }
            )
        lock_ms = self._shares.config(key.group_id).share_record_lock_duration_ms
        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "acquisition_lock_timeout": lock_ms,
            "responses": [{"topic_id": topic_uuid(name), "partitions": rows} for name, rows in topics.items()],
            "node_endpoints": [node._asdict() for node in moved.values()],
        }

    async def _acknowledge(
        self, context: Work, key: SessionKey, parts: Parts, *, is_renewal: bool
    ) -> dict[IdPartition, Answer]:
        """Have each partition take what is acknowledged of it, all at once."""
        hidden = self._hidden(context, parts)
        type_max = RENEW if context.version >= RENEW_FROM else RENEW - 1

        async def one(at: IdPartition) -> Answer:
            try:
                if at.topic_id in hidden:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                _check(parts[at], type_max if is_renewal else min(type_max, RENEW - 1))
                self._shares.leader(at)
                if not parts[at]:
                    return Answer(0)
                found = self._shares.known(key.group_id, at)
                if found is None:  # as in Kafka
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the group reads nothing of it here now")
                return await found.acknowledge(key.member_id, parts[at])
            except KafkaError as error:
                return Answer(0, error.code, error.message)

        asked = [at for at, each in parts.items() if each]
        return dict(zip(asked, await all_of(one, asked), strict=True))

    # ------------------------------------------------------------------ both

    def _member(self, context: Work, group_id: str | None, member_id: str | None) -> SessionKey:
        """Raises: KafkaError: UNSUPPORTED_VERSION, INVALID_REQUEST, GROUP_AUTHORIZATION_FAILED."""
        self._level.need(SHARE_GROUPS)
        if context.refused:
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if group_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
        if not member_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
        return SessionKey(group_id, member_id)

    def _hidden(self, context: Work, partitions: Iterable[IdPartition]) -> set[str]:
        """Return the ids of those topics that the member may not read."""
        ids = {at.topic_id for at in partitions}
        names = {name: topic_id for topic_id in ids if (name := self._metadata.name_of(topic_id)) is not None}
        return {names[name] for name in context.hidden(Operation.READ, Resource.TOPIC, names)}

    def _leader(self, at: IdPartition, moved: dict[int, NodeEndpoint], listener: str) -> CurrentLeader | None:
        name = self._metadata.name_of(at.topic_id)
        if name is None:
            return None
        return current_leader(self._metadata, TopicPartition(name, at.partition), moved, listener)


async def _parts(topics: Topics) -> Parts:
    found: Parts = {}
    async for chunk in in_steps((topic.topic_id, row) for topic in topics for row in topic.partitions):
        for topic_id, row in chunk:
            rows = found.setdefault(IdPartition(topic_id_of(topic_id), row.partition_index), [])
            rows += [
                Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
                for each in row.acknowledgement_batches
            ]
    return found


def _check(parts: Sequence[Acknowledgement], type_max: int) -> None:
    """Raises: KafkaError: INVALID_REQUEST: batches out of order, or types that are none, or not one for each record."""
    last = -1
    for each in parts:
        count = each.last - each.first + 1
        is_wrong = (
            count <= 0
            or each.first < last
            or not each.types
            or len(each.types) not in (1, count)
            or not all(0 <= kind <= type_max for kind in each.types)
        )
        if is_wrong:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "not a batch of acknowledgements")
        last = each.last


def _check_renewal(body: requests.ShareFetchRequest) -> None:
    """Raises: KafkaError: INVALID_REQUEST: a request that renews fetches nothing, as in Kafka."""
    limits = {
        "maxBytes": body.max_bytes,
        "minBytes": body.min_bytes,
        "maxRecords": body.max_records,
        "maxWaitMs": round(body.max_wait.total_seconds() * 1000),
    }
    wrong = "".join(f"{name} must be set to 0, " for name, value in limits.items() if value)
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{wrong}if isRenewAck is true.")
