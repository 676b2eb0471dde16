"""Needs: the rights that a request of each API takes, one operation on one resource a row, as in Kafka.

Topics that a request names by their ids are resolved to names; an id that nobody knows needs nothing, since its row is
an error in any case. A follower's fetch session holds only what it was granted as a whole: CLUSTER_ACTION.
APIs that list what there is need nothing here. Their handlers ask `Work.hidden` for the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias
from uuid import UUID

from replication.model.cluster import topic_id_of
from replication.model.metadata import Metadata
from replication.network.pipeline import Endpoint, Endpoints, Needs, TurnEndpoint, TurnHandler, no_needs
from replication.network.work import Handler, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.messages import FetchRequest, ProduceOne, ProduceRequest
from replication.protocol.small_messages import CommitOne, MetadataRequest, OffsetCommitRequest
from replication.security.access import (
    NAME_KEPT_MAX,
    Need,
    Operation,
    Resource,
    of_cluster,
    of_each,
    of_group,
    of_topic,
    of_transaction,
)

NameOf: TypeAlias = Callable[[UUID | None], str | None]  # of a topic's id on the wire
Found: TypeAlias = Sequence[Need]

TOPIC, GROUP_SETTINGS = 2, 32  # types of resources that have settings: all others are the cluster's
ANSWER_REFUSED = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.OFFSET_FETCH,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
)  # their handlers do
NAMES_KEPT = 10_000
ACT_FOR_CLUSTER = of_cluster(Operation.CLUSTER_ACTION)
_ACTING = (ACT_FOR_CLUSTER,)
CREATE_ANY, DELETE_ANY = of_cluster(Operation.CREATE), of_cluster(Operation.DELETE)  # of topics
DESCRIBE_ANY = of_cluster(Operation.DESCRIBE)  # of groups
# Producers without transactions need their ids, and any right to write is enough for one.
WRITE_IDEMPOTENTLY = of_cluster(Operation.IDEMPOTENT_WRITE, Need(Operation.WRITE, Resource.SOME_TOPIC, ""))
GROUP, TRANSACTION, SHARE = 0, 1, 2  # types of keys of coordinators
SEVERAL_GROUPS_FROM, SEVERAL_KEYS_FROM, OF_LEADERS_FROM = 8, 4, 4  # OffsetFetch, FindCoordinator, AddPartitionsToTxn


def endpoints(handlers: Mapping[ApiKey, Handler], turns: Mapping[ApiKey, TurnHandler], metadata: Metadata) -> Endpoints:
    """Return the APIs of a broker, each with its needs. Raises: KeyError: an API has none."""
    needs = needs_of(metadata)
    single = {key: Endpoint(needs[key], handler, key in ANSWER_REFUSED) for key, handler in handlers.items()}
    return {**single, **{key: TurnEndpoint(needs[key], turn, handlers.get(key)) for key, turn in turns.items()}}


def needs_of(metadata: Metadata) -> Mapping[ApiKey, Needs]:
    def name_of(topic_id: UUID | None) -> str | None:
        return None if topic_id is None else metadata.name_of(topic_id_of(topic_id))

    by_ids = {
        ApiKey.PRODUCE: _produce,
        ApiKey.FETCH: _fetch,
        ApiKey.METADATA: _metadata,
        ApiKey.DELETE_TOPICS: _delete_topics,
        ApiKey.OFFSET_COMMIT: _commit,
        ApiKey.OFFSET_FETCH: _fetch_offsets,
        ApiKey.TXN_OFFSET_COMMIT: _commit_in_transaction,
    }
    return {**_NEEDS, **{key: partial(needs, name_of) for key, needs in by_ids.items()}}


def _topics(operation: Operation, names: Iterable[str], instead: Need | None = None) -> list[Need]:
    return of_each(operation, Resource.TOPIC, names, instead)


def _one(operation: Operation, resource: Resource) -> Callable[[str], tuple[Need]]:
    """Return what names one need, made once for each name: clients send small requests again and again."""

    def made(name: str) -> tuple[Need]:
        return (Need(operation, resource, name),)

    kept = lru_cache(maxsize=NAMES_KEPT)(made)
    return lambda name: kept(name) if len(name) <= NAME_KEPT_MAX else made(name)


_writing, _reading = _one(Operation.WRITE, Resource.TOPIC), _one(Operation.READ, Resource.TOPIC)
_reading_group = _one(Operation.READ, Resource.GROUP)


def _cluster(operation: Operation, instead: Need | None = None) -> Needs:
    found = (of_cluster(operation, instead),)
    return lambda work: found


def _named(operation: Operation, instead: Need | None = None) -> Needs:
    def needs(work: Work) -> Found:
        body: (
            requests.ListOffsetsRequest
            | requests.CreateTopicsRequest
            | requests.DeleteRecordsRequest
            | requests.CreatePartitionsRequest
            | requests.DescribeProducersRequest
            | requests.DescribeTopicPartitionsRequest
        ) = work.body
        return _topics(operation, (topic.name for topic in body.topics), instead)

    return needs


def _group(work: Work) -> Found:
    body: (
        requests.JoinGroupRequest | requests.HeartbeatRequest | requests.LeaveGroupRequest | requests.SyncGroupRequest
    ) = work.body
    return _reading_group(body.group_id)


def _share(work: Work) -> Found:
    """The topics are looked at by the handler: most are of a session, and not of the request."""
    body: requests.ShareFetchRequest | requests.ShareAcknowledgeRequest = work.body
    return () if body.group_id is None else (of_group(Operation.READ, body.group_id),)


def _consumer_heartbeat(work: Work) -> Found:
    body: requests.ConsumerGroupHeartbeatRequest = work.body
    names = body.subscribed_topic_names or ()
    return [of_group(Operation.READ, body.group_id), *_topics(Operation.DESCRIBE, names)]


def _share_heartbeat(work: Work) -> Found:
    body: requests.ShareGroupHeartbeatRequest = work.body
    names = body.subscribed_topic_names or ()
    return [of_group(Operation.READ, body.group_id), *_topics(Operation.DESCRIBE, names)]


def _describe_share_offsets(work: Work) -> Found:
    body: requests.DescribeShareGroupOffsetsRequest = work.body
    return of_each(Operation.DESCRIBE, Resource.GROUP, (group.group_id for group in body.groups))


def _alter_share_offsets(work: Work) -> Found:
    body: requests.AlterShareGroupOffsetsRequest = work.body
    return (of_group(Operation.READ, body.group_id),)


def _delete_share_offsets(work: Work) -> Found:
    body: requests.DeleteShareGroupOffsetsRequest = work.body
    return (of_group(Operation.DELETE, body.group_id),)


def _produce(name_of: NameOf, work: Work) -> Found:
    body: ProduceOne | ProduceRequest = work.body
    has_ids = work.version >= TOPIC_IDS
    if type(body) is ProduceOne:
        named = name_of(body.topic_id) if has_ids else body.tp[0]
        return () if named is None else _writing(named)
    names = (name_of(topic.topic_id) if has_ids else topic.name for topic in body.topics)
    found = _topics(Operation.WRITE, (name for name in names if name is not None))
    transaction = body.transactional_id
    return found if transaction is None else [of_transaction(Operation.WRITE, transaction), *found]


def _fetch(name_of: NameOf, work: Work) -> Found:
    request: FetchRequest = work.body
    if request.replica_id >= 0:
        return _ACTING
    has_ids = work.version >= TOPIC_IDS
    if len(request.topics) == 1:
        ((name, topic_id, _),) = request.topics
        found = name_of(topic_id) if has_ids else name
        return () if found is None else _reading(found)
    named = (name_of(topic_id) if has_ids else name for name, topic_id, _ in request.topics)
    return _topics(Operation.READ, (name for name in named if name is not None))


def _metadata(name_of: NameOf, work: Work) -> Found:
    body: MetadataRequest = work.body
    named = (name_of(topic_id) if topic_id is not None else name for name, topic_id in body.topics or ())
    return _topics(Operation.DESCRIBE, (name for name in named if name is not None))


def _delete_topics(name_of: NameOf, work: Work) -> Found:
    body: requests.DeleteTopicsRequest = work.body
    named = (name_of(topic.topic_id) if topic.name is None else topic.name for topic in body.topics)
    names = (*body.topic_names, *(name for name in named if name is not None))
    return _topics(Operation.DELETE, names, DELETE_ANY)


def _epochs(work: Work) -> Found:
    body: requests.OffsetForLeaderEpochRequest = work.body
    return _topics(Operation.DESCRIBE, (topic.topic for topic in body.topics), ACT_FOR_CLUSTER)


def _commit(name_of: NameOf, work: Work) -> Found:
    body: CommitOne | OffsetCommitRequest | requests.TxnOffsetCommitRequest = work.body
    if type(body) is CommitOne:
        return _reading_group(body.group_id) + _reading(body.tp[0])
    named = (topic.name if topic.topic_id is None else name_of(topic.topic_id) for topic in body.topics)
    topics = [of_topic(Operation.READ, name) for name in named if name is not None]
    return [of_group(Operation.READ, body.group_id), *topics]


def _commit_in_transaction(name_of: NameOf, work: Work) -> Found:
    body: requests.TxnOffsetCommitRequest = work.body
    return [of_transaction(Operation.WRITE, body.transactional_id), *_commit(name_of, work)]


def _fetch_offsets(name_of: NameOf, work: Work) -> Found:
    body: requests.OffsetFetchRequest = work.body
    groups: Iterable[str] = (body.group_id,)
    names: Iterable[str | None] = (topic.name for topic in body.topics or ())
    if work.version >= SEVERAL_GROUPS_FROM:
        groups = (group.group_id for group in body.groups)
        topics = (topic for group in body.groups for topic in group.topics or ())
        names = (topic.name if topic.topic_id is None else name_of(topic.topic_id) for topic in topics)
    named = _topics(Operation.DESCRIBE, (name for name in names if name))
    return [*of_each(Operation.DESCRIBE, Resource.GROUP, groups), *named]


def _delete_offsets(work: Work) -> Found:
    body: requests.OffsetDeleteRequest = work.body
    topics = _topics(Operation.READ, (topic.name for topic in body.topics))
    return [of_group(Operation.DELETE, body.group_id), *topics]


def _coordinators(work: Work) -> Found:
    body: requests.FindCoordinatorRequest = work.body
    if body.key_type == SHARE:
        return _ACTING
    kinds = {GROUP: Resource.GROUP, TRANSACTION: Resource.TRANSACTIONAL_ID}
    kind = kinds.get(body.key_type)
    keys = body.coordinator_keys if work.version >= SEVERAL_KEYS_FROM else (body.key,)
    return () if kind is None else of_each(Operation.DESCRIBE, kind, keys)


def _describe_groups(work: Work) -> Found:
    body: requests.DescribeGroupsRequest = work.body
    return of_each(Operation.DESCRIBE, Resource.GROUP, body.groups)


def _describe_newer_groups(work: Work) -> Found:
    body: requests.ConsumerGroupDescribeRequest | requests.ShareGroupDescribeRequest = work.body
    return of_each(Operation.DESCRIBE, Resource.GROUP, body.group_ids)


def _delete_groups(work: Work) -> Found:
    body: requests.DeleteGroupsRequest = work.body
    return of_each(Operation.DELETE, Resource.GROUP, body.groups_names)


def _init_producer_id(work: Work) -> Found:
    body: requests.InitProducerIdRequest = work.body
    name = body.transactional_id
    if name is None:
        return (WRITE_IDEMPOTENTLY,)
    found = of_transaction(Operation.WRITE, name)
    return (found, of_transaction(Operation.TWO_PHASE_COMMIT, name)) if body.enable2_pc else (found,)


def _add_partitions(work: Work) -> Found:
    if work.version >= OF_LEADERS_FROM:
        return _ACTING
    body: requests.AddPartitionsToTxnRequest = work.body
    topics = _topics(Operation.WRITE, (topic.name for topic in body.v3_and_below_topics))
    return [of_transaction(Operation.WRITE, body.v3_and_below_transactional_id), *topics]


def _add_offsets(work: Work) -> Found:
    body: requests.AddOffsetsToTxnRequest = work.body
    return of_transaction(Operation.WRITE, body.transactional_id), of_group(Operation.READ, body.group_id)


def _end_transaction(work: Work) -> Found:
    body: requests.EndTxnRequest = work.body
    return (of_transaction(Operation.WRITE, body.transactional_id),)


def _settings(operation: Operation) -> Needs:
    def needs(work: Work) -> Found:
        body: (
            requests.DescribeConfigsRequest | requests.AlterConfigsRequest | requests.IncrementalAlterConfigsRequest
        ) = work.body
        resources = [(each.resource_type, each.resource_name) for each in body.resources]
        of_kind = {TOPIC: of_topic, GROUP_SETTINGS: of_group}
        return [
            of_kind[kind](operation, name) if kind in of_kind else of_cluster(operation)
            for kind, name in dict.fromkeys(resources)
        ]

    return needs


def _describe_transactions(work: Work) -> Found:
    body: requests.DescribeTransactionsRequest = work.body
    return of_each(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, body.transactional_ids)


_NEEDS: Mapping[ApiKey, Needs] = {
    ApiKey.LIST_OFFSETS: _named(Operation.DESCRIBE),
    ApiKey.LEADER_AND_ISR: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.STOP_REPLICA: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.UPDATE_METADATA: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.CONTROLLED_SHUTDOWN: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.FIND_COORDINATOR: _coordinators,
    ApiKey.JOIN_GROUP: _group,
    ApiKey.HEARTBEAT: _group,
    ApiKey.LEAVE_GROUP: _group,
    ApiKey.SYNC_GROUP: _group,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: no_needs,
    ApiKey.CREATE_TOPICS: _named(Operation.CREATE, CREATE_ANY),
    ApiKey.DELETE_RECORDS: _named(Operation.DELETE),
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.END_TXN: _end_transaction,
    ApiKey.WRITE_TXN_MARKERS: _cluster(Operation.ALTER, ACT_FOR_CLUSTER),
    ApiKey.DESCRIBE_ACLS: _cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: _cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: _settings(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _settings(Operation.ALTER_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _settings(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(Operation.DESCRIBE),
    ApiKey.CREATE_PARTITIONS: _named(Operation.ALTER),
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.ELECT_LEADERS: _cluster(Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(Operation.ALTER),
    ApiKey.UPDATE_FEATURES: _cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: no_needs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _named(Operation.DESCRIBE),
    ApiKey.DESCRIBE_PRODUCERS: _named(Operation.READ),
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: no_needs,
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.SHARE_FETCH: _share,
    ApiKey.SHARE_ACKNOWLEDGE: _share,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_newer_groups,
    ApiKey.SHARE_GROUP_HEARTBEAT: _share_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _describe_newer_groups,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _alter_share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _delete_share_offsets,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.READ_SHARE_GROUP_STATE: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.WRITE_SHARE_GROUP_STATE: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.DELETE_SHARE_GROUP_STATE: _cluster(Operation.CLUSTER_ACTION),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _cluster(Operation.CLUSTER_ACTION),
}
