"""The cluster: its brokers, versions, elections and reassignments."""

from replication.protocol.apis import ApiKey
from tests.support.kafka_answers.case import case, code, codes


@case("ElectLeaders of an unknown type", (42, [42, 42]))
def elect(asker):
    body = {
        "election_type": 9,
        "topic_partitions": [{"topic": asker.named("t"), "partitions": (0, 1)}],
        "timeout": 5000,
    }
    found = asker.ask(ApiKey.ELECT_LEADERS, 2, body)
    return code(found), codes(row for topic in found.replica_election_results for row in topic.partition_result)


@case("ElectLeaders of all partitions, none of which needs it", (0, []))
def elect_all(asker):
    found = asker.ask(ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": None, "timeout": 5000})
    return code(found), codes(row for topic in found.replica_election_results for row in topic.partition_result)


@case("AlterPartitionReassignments: a partition twice", [42], [0, 85])
def reassign_twice(asker):
    rows = [{"partition_index": 0, "replicas": replicas} for replicas in ((1,), None)]
    body = {"timeout": 5000, "topics": [{"name": asker.named("t"), "partitions": rows}]}
    found = asker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
    return codes(row for topic in found.responses for row in topic.partitions)


@case(
    "ApiVersions: this broker, another, another cluster, half of a name, any",
    [(0, True), (129, False), (129, False), (42, False), (42, False), (0, True)],
)
def versions_of_whom(asker):
    body = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    own = asker.ask(ApiKey.DESCRIBE_CLUSTER, 1, body).cluster_id

    def asked(cluster_id, node_id):
        software = {"client_software_name": "asker", "client_software_version": "1"}
        found = asker.ask(ApiKey.API_VERSIONS, 5, {**software, "cluster_id": cluster_id, "node_id": node_id})
        return code(found), bool(found.api_keys)

    return [asked(own, 1), asked(own, 9), asked("other", 1), asked(own, -1), asked(None, 1), asked(None, -1)]


def described_cluster(asker, version, **body):
    found = asker.ask(
        ApiKey.DESCRIBE_CLUSTER, version,
        {"include_cluster_authorized_operations": False, "include_fenced_brokers": True, "endpoint_type": 1, **body},
    )  # fmt: skip
    return code(found), [getattr(broker, "is_fenced", None) for broker in found.brokers]


@case(
    "DescribeCluster: by version, of controllers, of an unknown type",
    [(0, [None]), (0, [None]), (0, [False]), (114, []), (115, [])],
)
def describe_the_cluster(asker):
    return [
        *(described_cluster(asker, version) for version in range(3)),
        *(described_cluster(asker, 2, endpoint_type=kind) for kind in (2, 9)),
    ]


@case("AlterPartitionReassignments: the same replicas, where another number is not allowed", (False, [0]))
def reassign_alike(asker):
    rows = [{"partition_index": 0, "replicas": (1,)}]
    topics = [{"name": asker.named("t"), "partitions": rows}]
    body = {"timeout": 5000, "allow_replication_factor_change": False, "topics": topics}
    found = asker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
    return found.allow_replication_factor_change, codes(row for topic in found.responses for row in topic.partitions)
