"""Settings of topics and brokers."""

from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.kafka_answers.case import case, code, codes
from tests.support.kafka_answers.topics import create_with, described

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(asker, kind, name, *changes, validate_only=False, times=1):
    rows = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    body = {"resources": [resource] * times, "validate_only": validate_only}
    return codes(asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses)


def alter_all(asker, kind, name, key, value):
    resource = {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value}]}
    return codes(asker.ask(ApiKey.ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": True}).responses)


@case("IncrementalAlterConfigs: a value that is null", [42, 42, 42, 0])
def altered_to_null(asker):
    changes = ("retention.ms", SET, None), ("cleanup.policy", APPEND, None), ("cleanup.policy", SUBTRACT, None)
    rest = ("retention.ms", DELETE, None)
    return [found for change in (*changes, rest) for found in alter(asker, 2, asker.named("t"), change)]


@case("IncrementalAlterConfigs of client metrics", [42], [0])
def altered_metrics(asker):
    return alter(asker, 16, asker.named("m"), ("interval.ms", DELETE, None))


@case("IncrementalAlterConfigs: an unknown operation", [42], [-1])
def altered_unknown(asker):
    return alter(asker, 2, asker.named("t"), ("retention.ms", 9, "1"))


@case("IncrementalAlterConfigs: all of cleanup.policy, and back", ["", "delete", "delete,compact"])
def policies_taken_away(asker):
    name, _ = create_with(asker)
    found = []
    for how, policy, then in (
        (SUBTRACT, "delete", ""),
        (APPEND, "delete", "delete"),
        (APPEND, "compact", "delete,compact"),
    ):
        assert alter(asker, 2, name, ("cleanup.policy", how, policy)) == [0]
        until(lambda then=then: described(asker, name, "cleanup.policy") == then)  # a broker may hear of it later
        found.append(then)
    return found


@case("IncrementalAlterConfigs: an empty text added to cleanup.policy", ([40], "delete"))
def policy_with_nothing(asker):
    name, _ = create_with(asker)
    return alter(asker, 2, name, ("cleanup.policy", APPEND, "")), described(asker, name, "cleanup.policy")


@case("IncrementalAlterConfigs: an unknown name, of a broker and of all brokers", [40, 40], [0, 0])
def broker_unknown_name(asker):
    change = "nonsense", SET, "1"
    return alter(asker, 4, "1", change, validate_only=True) + alter(asker, 4, "", change, validate_only=True)


@case("IncrementalAlterConfigs: log.cleaner.threads", [40, 40], [0, 42])
def broker_cleaner_threads(asker):
    return [
        found
        for value in ("1", "x")
        for found in alter(asker, 4, "1", ("log.cleaner.threads", SET, value), validate_only=True)
    ]


@case("IncrementalAlterConfigs of a group: within the bounds of brokers, and out of them", [0, 40, 40, 40, 40, 42])
def altered_group(asker):
    return [
        found
        for name, *change in (
            ("g", "consumer.session.timeout.ms", "50000"),
            ("g", "share.session.timeout.ms", "60001"),
            ("g", "share.delivery.count.limit", "1"),
            ("g", "share.auto.offset.reset", "none"),
            ("g", "nonsense", "1"),
            ("", "share.delivery.count.limit", "3"),
        )
        for found in alter(asker, 32, name, (change[0], SET, change[1]), validate_only=True)
    ]


@case("IncrementalAlterConfigs of a group: settings of streams groups", [40], [0])
def altered_streams_group(asker):
    return alter(asker, 32, "g", ("streams.num.standby.replicas", SET, "1"), validate_only=True)


GROUP_SETTINGS = {
    "consumer.heartbeat.interval.ms": ("5000", 5, 3),
    "consumer.session.timeout.ms": ("45000", 5, 3),
    "share.auto.offset.reset": ("latest", 5, 2),
    "share.delivery.count.limit": ("7", 8, 3),
    "share.heartbeat.interval.ms": ("5000", 5, 3),
    "share.isolation.level": ("read_uncommitted", 5, 2),
    "share.partition.max.record.locks": ("2000", 5, 3),
    "share.record.lock.duration.ms": ("30000", 5, 3),
    "share.renew.acknowledge.enable": ("true", 5, 1),
    "share.session.timeout.ms": ("45000", 5, 3),
}


@case("a group's settings are described and listed, before there is such a group", (GROUP_SETTINGS, [0, 1], [35]))
def group_settings(asker):
    """Value, source and type of each setting that there is here."""
    group = asker.named("settings")
    assert alter(asker, 32, group, ("share.delivery.count.limit", SET, "7")) == [0]

    def described_group():
        keys = [{"resource_type": 32, "resource_name": group, "configuration_keys": list(GROUP_SETTINGS)}]
        body = {"resources": keys, "include_synonyms": False, "include_documentation": False}
        (row,) = asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results
        return {each.name: (each.value, each.config_source, each.config_type) for each in row.configs}

    until(lambda: described_group()["share.delivery.count.limit"][1] == 8)

    def listed(*types):
        found = asker.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": types})
        of_group = sum(row.resource_name == group for row in found.config_resources)
        return [found.error_code.value, of_group] if not found.error_code.value else [found.error_code.value]

    return described_group(), listed(32), listed(77)


@case("IncrementalAlterConfigs: a topic twice in one request", [42], [42, 42])
def altered_twice(asker):
    return alter(asker, 2, asker.named("t"), ("retention.ms", SET, "1000"), times=2)


@case("AlterConfigs: a value that is null; an empty cleanup.policy", [42, 0])
def all_altered(asker):
    topic = asker.named("t")
    return alter_all(asker, 2, topic, "retention.ms", None) + alter_all(asker, 2, topic, "cleanup.policy", "")


@case("AlterConfigs: an unknown name, of a broker", [40], [0])
def all_of_a_broker_altered(asker):
    return alter_all(asker, 4, "1", "nonsense", "1")


def describe(asker, *resources):
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources]
    body = {"resources": rows, "include_synonyms": False, "include_documentation": False}
    return codes(asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results)


@case("DescribeConfigs of a topic that cannot be", [17, 17, 3])
def describe_illegal(asker):
    return describe(asker, (2, "")) + describe(asker, (2, "a/b")) + describe(asker, (2, "nope"))


@case("DescribeConfigs of a broker's loggers, of client metrics", [42, 42], [0, 0])
def describe_others(asker):
    return describe(asker, (8, "1")) + describe(asker, (16, "x"))


@case("DescribeConfigs of all brokers, where nothing was set", [], ["min.insync.replicas"])
def describe_all_brokers(asker):
    row = {"resource_type": 4, "resource_name": "", "configuration_keys": None}
    body = {"resources": [row], "include_synonyms": False, "include_documentation": False}
    return [each.name for each in asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results[0].configs]


@case("DescribeConfigs: a topic twice in one request", [0], [0, 0])
def describe_twice(asker):
    return describe(asker, (2, asker.named("t")), (2, asker.named("t")))


@case(
    "AlterUserScramCredentials: few and many iterations, no name, no mechanism, one twice, one that is not there",
    [93, 93, 93, 33, 92, 91],
)
def alter_users(asker):
    def row(name, mechanism=1, iterations=4096):
        made = {"name": name, "mechanism": mechanism, "iterations": iterations}
        return made | {"salt": b"salt", "salted_password": bytes(32)}

    def altered(*upsertions, deletions=()):
        body = {"upsertions": upsertions, "deletions": deletions}
        (found,) = asker.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body).results
        return code(found)

    name = asker.named("ada")
    refused = [altered(each) for each in (row(name, 1, 4095), row(name, 1, 16_385), row(""), row(name, 9))]
    gone = {"name": name, "mechanism": 1}
    return [*refused, altered(row(name), row(name)), altered(deletions=[gone])]


@case(
    "DescribeUserScramCredentials: one without a name, one that is not there, and one that is named twice",
    [(91, 0), (91, 0), (92, 0)],
)
def describe_users(asker):
    rows = [{"name": ""}, *({"name": asker.named(name)} for name in ("nobody", "twice", "twice"))]
    found = asker.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": rows}).results
    return [(code(each), len(each.credential_infos)) for each in sorted(found, key=lambda each: each.user)]
