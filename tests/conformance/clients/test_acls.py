"""ACLs made, found and deleted by the Admins of librdkafka and kafka-python; clients that they concern."""

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.asker import until
from tests.support.in_process import brokers_in_process

from .tools import PATIENCE_S, kafka

RIGHTS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}
TOPIC, GROUP, CLUSTER, TRANSACTION = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER, ResourceType.TRANSACTIONAL_ID
)  # fmt: skip
LITERAL, PREFIXED, ANY = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED, ResourcePatternType.ANY
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
ACLS = [
    (TOPIC, "orders", LITERAL, "User:alice", "*", AclOperation.READ, ALLOW),
    (TOPIC, "orders-", PREFIXED, "User:alice", "10.0.0.1", AclOperation.ALL, DENY),
    (GROUP, "*", LITERAL, "User:*", "*", AclOperation.DESCRIBE, ALLOW),
    (CLUSTER, "kafka-cluster", LITERAL, "User:bob", "*", AclOperation.IDEMPOTENT_WRITE, ALLOW),
]  # fmt: skip


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("acls"), (1, 2), **RIGHTS) as running:
        yield running


def fields_of(acl):
    return (
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )  # fmt: skip


def every(**fields):
    row = {
        "restype": ResourceType.ANY, "name": None, "resource_pattern_type": ANY, "principal": None, "host": None,
        "operation": AclOperation.ANY, "permission_type": AclPermissionType.ANY,
    } | fields  # fmt: skip
    return AclBindingFilter(*row.values())


def test_librdkafkas_admin_makes_finds_and_deletes_acls(brokers):
    admin = AdminClient({"bootstrap.servers": ",".join(str(each.endpoint) for each in brokers.brokers.values())})
    for done in admin.create_acls([AclBinding(*acl) for acl in ACLS]).values():
        assert done.result(PATIENCE_S) is None

    def found(**fields):
        return {fields_of(acl) for acl in admin.describe_acls(every(**fields)).result(PATIENCE_S)}

    until(lambda: found() == set(ACLS))
    assert found(principal="User:alice") == set(ACLS[:2])
    matching = {"restype": TOPIC, "name": "orders-eu", "resource_pattern_type": ResourcePatternType.MATCH}
    assert found(**matching) == {ACLS[1]}
    wrong = AclBinding(TOPIC, "t", LITERAL, "alice", "*", AclOperation.READ, ALLOW)
    (refused,) = admin.create_acls([wrong]).values()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        refused.result(PATIENCE_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_REQUEST
    assert "Could not parse principal from `alice`" in caught.value.args[0].str()
    for wanted, expected in ((every(restype=TOPIC), ACLS[:2]), (every(), ACLS[2:])):
        (deleted,) = admin.delete_acls([wanted]).values()
        assert {fields_of(acl) for acl in deleted.result(PATIENCE_S)} == set(expected)
    until(lambda: found() == set())


@pytest.mark.skipif(kafka is None, reason="no kafka-python")
def test_kafka_pythons_admin_makes_finds_and_deletes_acls(brokers):
    from kafka.admin import ACL, ACLFilter, KafkaAdminClient, ResourcePattern, ResourcePatternFilter
    from kafka.admin import ACLOperation as Operation
    from kafka.admin import ACLPermissionType as Permission
    from kafka.admin import ACLResourcePatternType as PatternType
    from kafka.admin import ResourceType as Kind

    admin = KafkaAdminClient(bootstrap_servers=str(brokers.brokers[1].endpoint))
    pattern = ResourcePattern(Kind.TOPIC, "a/b", PatternType.PREFIXED)
    acl = ACL("User:alice", "*", Operation.WRITE, Permission.DENY, pattern)
    made = admin.create_acls([acl])
    assert (made["succeeded"], made["failed"]) == ([acl], [])
    anything = ResourcePatternFilter(Kind.ANY, None, PatternType.ANY)
    every_acl = ACLFilter(None, None, Operation.ANY, Permission.ANY, anything)
    found, error = admin.describe_acls(every_acl)
    assert (found, error.errno) == ([acl], 0)
    ((_, deleted, error),) = admin.delete_acls([every_acl])
    assert (deleted, error.errno) == ([acl], 0)
    assert admin.describe_acls(every_acl)[0] == []
    admin.close()


def test_clients_are_told_what_they_lack_and_go_on_once_they_have_it(tmp_path):
    """A producer and a consumer of librdkafka without a name; the ACLs are given by a super user inside the broker."""
    settings = RIGHTS | {"super_users": "User:ops", "group_initial_rebalance_delay_ms": 0}
    with brokers_in_process(tmp_path, (1,), **settings) as running:
        from replication.security.access import Operation, Resource
        from replication.security.acl import Entry, Pattern

        authorizer = running.brokers[1].authorizer

        def grant(resource, name, *operations):
            async def put():
                authorizer.put(Pattern(resource, name), [Entry("User:ANONYMOUS", each) for each in operations])

            running.do(put())

        servers = {"bootstrap.servers": running.bootstrap, "log_level": 0}
        admin = AdminClient(servers)
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(PATIENCE_S)
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        grant(Resource.TOPIC, "orders", Operation.CREATE, Operation.WRITE)
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(PATIENCE_S)
        assert set(admin.list_topics(timeout=PATIENCE_S).topics) == {"orders"}

        producer, errors = confluent_kafka.Producer(servers | {"enable.idempotence": True}), []
        for topic in ("orders", "others"):
            producer.produce(topic, b"v", on_delivery=lambda error, message: errors.append((message.topic(), error)))
        assert producer.flush(PATIENCE_S) == 0
        told = dict(errors)
        assert told["orders"] is None
        assert told["others"].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED

        consumer = confluent_kafka.Consumer(servers | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])

        def told_of(code):
            message = consumer.poll(1)
            return message is not None and message.error() is not None and message.error().code() == code

        until(lambda: told_of(confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED))
        grant(Resource.GROUP, "g", Operation.READ)
        grant(Resource.TOPIC, "orders", Operation.READ)

        def value():
            message = consumer.poll(1)
            return message is not None and message.error() is None and message.value()

        assert until(value) == b"v"
        consumer.close()
