"""Every option is checked; what is wrong is answered by one line that says what to write instead."""

from datetime import datetime, timedelta, timezone

import pytest

from datasource.connector.option_names import OPTIONS, Use
from datasource.connector.options import (
    TaskLimits,
    TriggerLimits,
    check_read,
    read_options,
    selected_columns,
    write_options,
)
from datasource.connector.places import (
    EARLIEST,
    LATEST,
    Assign,
    Everywhere,
    Offsets,
    OfGroup,
    Subscribe,
    SubscribePattern,
    Time,
    Times,
)
from datasource.schema import COLUMNS
from logstore import InvalidConfigError
from replication.client.registry_settings import NAMES, registry_of
from replication.client.security import security_of
from tests.support.object_store import storage_value

READ = {"path": "/log", "subscribe": "orders"}
WRITE = {"path": "/log", "topic": "orders"}


def refusal(options, *, streaming=False, write=False):
    with pytest.raises(InvalidConfigError) as caught:
        write_options(options) if write else read_options(options, streaming=streaming)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_stream_starts_at_the_end_and_a_batch_at_the_beginning():
    assert read_options(READ, streaming=True).starting == Everywhere(LATEST)
    assert read_options(READ, streaming=False).starting == Everywhere(EARLIEST)
    assert read_options(READ, streaming=False).ending == Everywhere(LATEST)


def test_option_names_have_no_case():
    options = read_options({"PATH": "/log", "SubscribePattern": "o.*", "FailOnDataLoss": "FALSE"}, streaming=True)
    assert options.topics == SubscribePattern("o.*")
    assert options.fail_on_data_loss is False


def test_a_group_says_where_a_read_over_a_cluster_begins():
    read = {"kafka.bootstrap.servers": "a:1", "subscribe": "orders", "groupId": "g"}
    for streaming, otherwise in ((True, LATEST), (False, EARLIEST)):
        options = read_options({**read, "startingOffsets": "Group"}, streaming=streaming)
        assert (options.group, options.starting) == ("g", OfGroup(otherwise))
    assert read_options(read, streaming=True).starting == Everywhere(LATEST)
    timed = {**read, "startingOffsets": "group", "startingTimestamp": "5"}
    assert read_options(timed, streaming=False).starting == Time(5)
    assert "commits nothing" in refusal(read)
    assert "keeps no groups" in refusal({**READ, "groupId": "g"}, streaming=True)
    assert "must not be empty" in refusal({**read, "groupId": " "}, streaming=True)
    assert "needs the option 'groupId'" in refusal({**READ, "startingOffsets": "group"})


def test_topics_are_chosen_in_three_ways():
    assert read_options({**READ, "subscribe": " a, b ,a"}, streaming=False).topics == Subscribe(("a", "b"))
    assign = {"path": "/log", "assign": '{"b":[1,0],"a":[2]}'}
    assert read_options(assign, streaming=False).topics == Assign({"a": (2,), "b": (0, 1)})


def test_a_view_of_latest_values_reads_whole_partitions():
    assert read_options(READ | {"view": "Latest", "endingOffsets": "latest"}, streaming=False).is_latest
    assert not read_options(READ, streaming=False).is_latest
    assert "one of latest" in refusal(READ | {"view": "first"})
    for name, value in {"startingOffsets": "earliest", "startingTimestamp": "5", "minPartitions": "4"}.items():
        assert f"option {name}={value!r}: view=latest reads " in refusal(READ | {"view": "latest", name: value})
    assert "datasource.upsert keeps the last state" in refusal(READ | {"view": "latest"}, streaming=True)
    assert "'view' has no meaning in a write" in refusal(WRITE | {"view": "latest"}, write=True)


@pytest.mark.parametrize("more", [{"assign": '{"a":[0]}'}, {"subscribePattern": "a"}])
def test_topics_are_chosen_in_one_way_only(more):
    assert "exactly one of" in refusal(READ | more)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("assign", "orders"),
        ("assign", "[]"),
        ("assign", '{"a":0}'),
        ("assign", '{"a":[]}'),
        ("assign", '{"a":[-1]}'),
        ("assign", '{"a":[true]}'),
        ("assign", '{"a":[0],"a":[1]}'),
        ("subscribe", " , "),
        ("subscribePattern", "("),
        ("subscribePattern", ""),
    ],
)
def test_a_bad_choice_of_topics_is_refused(name, text):
    assert f"option {name}=" in refusal({"path": "/log", name: text})


def test_offsets_are_json_with_words_for_the_ends():
    text = '{"b":{"1":-1,"0":-2},"a":{"10":7,"2":3}}'
    assert read_options({**READ, "startingOffsets": text}, streaming=True).starting == Offsets(
        {"a": {2: 3, 10: 7}, "b": {0: -2, 1: -1}}
    )


@pytest.mark.parametrize(
    ("name", "text", "streaming"),
    [
        ("startingOffsets", "latest", False),
        ("startingOffsets", '{"a":{"0":-1}}', False),
        ("startingOffsets", "first", True),
        ("startingOffsets", "{", True),
        ("startingOffsets", '{"a":3}', True),
        ("startingOffsets", '{"a":{"x":3}}', True),
        ("startingOffsets", '{"a":{"0":-3}}', True),
        ("startingOffsets", '{"a":{"0":1.5}}', True),
        ("endingOffsets", "earliest", False),
        ("endingOffsets", '{"a":{"0":-2}}', False),
        ("startingTimestamp", "yesterday", False),
        ("startingTimestamp", "-5", False),
        ("startingTimestamp", "2026-01-02 03:04:05", True),  # no zone
        ("endingTimestamp", "2026-01-02", False),
        ("startingOffsetsByTimestamp", '{"a":{"0":"2026-01-02 03:04:05"}}', False),
        ("startingOffsetsByTimestamp", '{"a":{"0":-2}}', False),
        ("startingOffsetsByTimestampStrategy", "earliest", False),
        ("failOnDataLoss", "yes", False),
        ("pushdown", "1", False),
        ("includeHeaders", "1", False),
        ("minPartitions", "0", False),
        ("maxRecordsPerPartition", "-1", False),
        ("maxOffsetsPerTrigger", "many", True),
        ("maxBytesPerTrigger", "0", True),
        ("minOffsetsPerTrigger", "", True),
        ("maxTriggerDelay", "soon", True),
        ("fetchOffset.numRetries", "-1", True),
        ("columns", "value,valu", False),
        ("columns", "value,VALUE", False),
        ("columns", "", False),
    ],
)
def test_a_bad_value_is_refused_with_the_rule(name, text, streaming):
    assert f"option {name}=" in refusal({**READ, name: text}, streaming=streaming)


def test_a_time_beats_times_per_partition_beats_offsets():
    given = {**READ, "startingOffsets": "earliest", "endingOffsets": "latest"}
    assert read_options(given, streaming=False).starting == Everywhere(EARLIEST)
    given |= {
        "startingOffsetsByTimestamp": '{"orders":{"0":5}}',
        "endingOffsetsByTimestamp": '{"orders":{"0":6}}',
    }
    assert read_options(given, streaming=False).starting == Times({"orders": {0: 5}})
    given |= {"startingTimestamp": "7", "endingTimestamp": "8"}
    options = read_options(given, streaming=False)
    assert (options.starting, options.ending) == (Time(7), Time(8))


def test_a_time_may_be_the_text_that_pyspark_makes_of_a_datetime():
    noon = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=1)))
    given = {**READ, "startingTimestamp": str(noon), "endingOffsetsByTimestamp": f'{{"orders":{{"0":"{noon}"}}}}'}
    options = read_options(given, streaming=False)
    assert (options.starting, options.ending) == (Time(1_767_351_600_000), Times({"orders": {0: 1_767_351_600_000}}))


def test_limits_are_read():
    options = read_options(
        {
            **READ,
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "maxBytesPerTrigger": "1000",
            "maxTriggerDelay": "2m",
            "minPartitions": "4",
            "maxRecordsPerPartition": "100",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "2",
            "startingOffsetsByTimestampStrategy": "latest",
        },
        streaming=True,
    )
    assert options.trigger == TriggerLimits(max_offsets=10, min_offsets=5, max_bytes=1000, max_delay_ms=120_000)
    assert options.tasks == TaskLimits(min_partitions=4, max_records=100)
    assert (options.retries, options.retry_interval_ms, options.no_match_is_latest) == (1, 2, True)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("250", 250), ("250ms", 250), ("3s", 3000), ("2m", 120_000), ("2min", 120_000), ("1h", 3_600_000)],
)
def test_delays_have_units(text, expected_ms):
    assert read_options({**READ, "maxTriggerDelay": text}, streaming=True).trigger.max_delay_ms == expected_ms


def test_the_least_per_trigger_is_not_above_the_most():
    assert "maxOffsetsPerTrigger" in refusal(
        {**READ, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, streaming=True
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribes", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("startingoffset", "startingOffsets"),
        ("topics", "subscribe"),
        ("brokers", "kafka.bootstrap.servers"),
    ],
)
def test_a_misspelt_option_is_answered_by_the_right_one(name, meant):
    assert f"did you mean '{meant}'?" in refusal({**READ, name: "1"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("maxOffsetPerTrigger", "'maxOffsetsPerTrigger' has no meaning in a batch read: a batch has no triggers"),
    ],
)
def test_a_misspelt_option_that_is_of_no_use_here_is_answered_by_the_one_that_is(name, line):
    assert refusal({**READ, name: "1"}).startswith(f"unknown option {name.lower()!r}; {line}")


def test_an_unknown_option_is_answered_by_the_list():
    assert "takes path, kafka.bootstrap.servers, assign, subscribe" in refusal({**READ, "zzz": "1"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.group.id", "groupId"),
        ("kafka.max.poll.records", "only those of addresses, rack, TLS and SASL"),
        ("kafka.ssl.truststore.password", "a PEM file has none"),
        ("kafka.sasl.mechansim", "did you mean 'sasl.mechanism'"),
        ("groupIdPrefix", "groupId"),
        ("kafkaConsumer.pollTimeoutMs", "remove it"),
        ("bootstrap.servers", "'kafka.bootstrap.servers'"),
        ("topic", "subscribe"),
        ("maxOffsetsPerTrigger", "endingOffsets"),
        ("checkpointLocation", "belongs to a write"),
        ("partitioner", "belongs to a write"),
    ],
)
def test_an_option_without_a_meaning_is_refused_with_a_hint(name, hint):
    text = refusal({**READ, name: "x"})
    assert "has no meaning" in text
    assert hint in text


@pytest.mark.parametrize("more", [{}, {"endingOffsets": "latest"}, {"maxOffsetsPerTrigger": "1"}])
@pytest.mark.parametrize("starting", ["earliest", "latest", '{"orders":{"0":-1}}'])
def test_a_read_of_a_kind_not_known_yet_may_have_what_either_kind_takes(more, starting):
    check_read({**READ, "startingOffsets": starting, **more})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({**READ, "maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        (
            {**READ, "maxOffsetsPerTrigger": "1", "endingOffsets": "latest"},
            "options 'endingOffsets' (of a batch) and 'maxOffsetsPerTrigger' (of a stream) are both given",
        ),
        ({**READ, "endingOffset": "1"}, "did you mean 'endingOffsets'"),
        ({**READ, "zzz": "1"}, "a read takes path, kafka.bootstrap.servers, assign"),
        ({**READ, "topic": "t"}, "has no meaning in a read: a read chooses"),
        ({**READ, "startingOffsets": "latst"}, ": 'earliest', in a stream also 'latest', or JSON like"),
        ({**READ, "endingOffsets": "foo"}, ": 'latest', or JSON like"),
        ({"path": "/log"}, "none is given"),
        ({"subscribe": "t"}, "option 'path'"),
        ({}, "option 'path'"),
    ],
)
def test_what_neither_kind_of_read_takes_is_refused(options, line):
    with pytest.raises(InvalidConfigError) as caught:
        check_read(options)
    assert line in str(caught.value)


def test_a_wrong_place_is_answered_with_what_is_valid_in_that_kind_of_read():
    wrong = {**READ, "startingOffsets": "foo"}
    assert ": 'earliest', or JSON like" in refusal(wrong)
    assert ": 'latest' or 'earliest', or JSON like" in refusal(wrong, streaming=True)
    assert ": 'earliest', or JSON like" in refusal({**READ, "startingOffsets": "latest"})
    assert ": 'latest', or JSON like" in refusal({**READ, "endingOffsets": "earliest"})


def test_a_table_may_be_created_without_options():
    check_read({"provider": "pylog", "owner": "me"})


def test_a_stream_has_no_end():
    assert "availableNow" in refusal({**READ, "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize("options", [{}, {"provider": "pylog", "owner": "me", "option.path": "/log"}])
def test_a_table_that_lost_its_options_is_explained(options):
    text = refusal(options)
    assert "CREATE TABLE" in text
    assert "datasource.register(spark, place)" in text


@pytest.mark.parametrize(("options", "write"), [({"subscribe": "a"}, False), ({**WRITE, "path": ""}, True)])
def test_a_missing_path_is_named(options, write):
    assert "option 'path'" in refusal(options, write=write)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("file:///a/b", "/a/b"), ("file:/a", "/a"), ("rel/a", "rel/a"), ("/a b/c", "/a b/c")],
)
def test_a_path_may_be_a_file_uri(path, expected):
    assert read_options({**READ, "path": path}, streaming=False).location.path == expected


@pytest.mark.parametrize("path", ["s3a://bucket/log", "hdfs://host/log", "dbfs:/log"])
def test_an_object_store_is_refused(path):
    assert "file system" in refusal({**READ, "path": path})


def test_columns_are_seven_or_eight_or_chosen():
    assert selected_columns({}) == COLUMNS
    assert selected_columns({"includeHeaders": "true"}) == (*COLUMNS, "headers")
    assert selected_columns({"Columns": "OFFSET, value,timestamptype"}) == (
        "offset",
        "value",
        "timestampType",
    )


def test_a_write_has_defaults_and_choices():
    options = write_options({"path": "/log"})
    assert (options.topic, options.partitioner, options.compression, options.include_headers) == (
        None,
        "murmur3",
        None,
        True,
    )
    options = write_options(
        {
            **WRITE,
            "partitioner": "murmur2",
            "compression": "ZSTD",
            "includeHeaders": "false",
            "checkpointLocation": "/c",
            "queryName": "q",
        }
    )
    assert (options.topic, options.partitioner, options.compression, options.include_headers) == (
        "orders",
        "murmur2",
        "zstd",
        False,
    )


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("partitioner", "random", "murmur3"),
        ("compression", "lzo", "zstd"),
        ("kafka.partitioner.class", "x", "'partitioner'"),
        ("kafka.transactional.id", "x", "'txnId'"),
        ("exactlyOnce", "maybe", "true, false"),
        ("isolation", "read_committed", "belongs to"),
        ("subscribe", "a", "'topic'"),
        ("topics", "a", "did you mean 'topic'"),
        ("startingOffsets", "earliest", "belongs to"),
    ],
)
def test_a_bad_write_option_is_refused(name, value, hint):
    assert hint in refusal({**WRITE, name: value}, write=True)


@pytest.mark.parametrize(
    ("options", "streaming", "hint"),
    [
        ({"txnId": "a"}, False, "a batch write takes both"),
        ({"txnVersion": "1"}, False, "a batch write takes both"),
        ({"txnId": "a", "txnVersion": "-1"}, False, "a whole number"),
        ({"txnId": " ", "txnVersion": "1"}, False, "must not be empty"),
        ({"txnId": "a", "txnVersion": "1"}, True, "a stream numbers its batches itself"),
        ({"txnId": "a", "txnVersion": "1", "exactlyOnce": "false"}, False, "needs exactlyOnce=true"),
    ],
)
def test_what_names_a_transaction_goes_together(options, streaming, hint):
    with pytest.raises(InvalidConfigError, match=hint):
        write_options({**WRITE, **options}, streaming=streaming)


def test_a_table_has_committed_records_only():
    together = READ | {"includeTiered": "true", "isolation": "read_uncommitted"}
    assert "includeTiered reads committed records" in refusal(together)


def test_a_stream_may_be_named():
    options = write_options({**WRITE, "txnId": "a", "transaction.timeout.ms": "1m"}, streaming=True)
    assert (options.transaction, options.batch_id, options.transaction_timeout_ms) == ("a", None, 60_000)


SASL_SSL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
USER = SASL_SSL | {"sasl.username": "a", "sasl.password": "b"}
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = SASL_SSL | {"sasl.jaas.config": f"{MODULE} required username=a password=b;"}
FILES = {
    "ssl.ca.location": "a",
    "ssl.certificate.location": "b",
    "ssl.key.location": "c",
    "ssl.key.password": "d",
}
FILES |= {"ssl.endpoint.identification.algorithm": ""}
PEM = {"type": "PEM", "location": "a"}
STORES = {f"ssl.{kind}store.{name}": value for kind in ("key", "trust") for name, value in PEM.items()}


def test_a_cluster_is_met_as_the_options_say_and_a_directory_is_not():
    options = {f"kafka.{name}": value for name, value in (JAAS | FILES).items()}
    found = read_options({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **options}, streaming=True)
    assert found.location.security == security_of(USER | FILES)
    assert read_options({"subscribe": "t", **found.location.options}, streaming=True).location == found.location
    assert "password" not in repr(found).replace("checks", "")
    for options in ({"path": "/log"}, {"kafka.bootstrap.servers": "a:1"}):
        with pytest.raises(InvalidConfigError, match=r"kafka\.ssl\.ca\.location") as caught:
            write_options({"exactlyOnce": "false", "kafka.ssl.ca.location": "a", **options})
        assert ("needs a cluster" in str(caught.value)) == ("path" in options)


REGISTRY = {
    "schema.registry.url": "https://r:8081",
    "schema.registry.basic.auth.user.info": "me:secret",
    "schema.registry.basic.auth.credentials.source": "user_info",
}


@pytest.mark.parametrize("place", [{"path": "/log"}, {"kafka.bootstrap.servers": "a:1"}])
def test_schemas_may_be_in_another_registry(place):
    found = read_options({**place, **REGISTRY, "subscribe": "t", "typed": "true"}, streaming=True)
    assert found.location.registry == registry_of(REGISTRY)
    again = read_options({"subscribe": "t", "typed": "true", **found.location.options}, streaming=True)
    assert again.location == found.location
    assert "secret" not in repr(found)
    for files in (FILES, STORES):
        named = REGISTRY | {f"schema.registry.{name}": value for name, value in files.items()}
        assert write_options({**place, "topic": "t", "typed": "true", **named}).location.registry == registry_of(named)
    with pytest.raises(InvalidConfigError, match=r"'schema\.registry\.url' needs typed=true") as caught:
        read_options({**place, **REGISTRY, "subscribe": "t", "value.format": "json"}, streaming=True)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidConfigError, match="begins with http"):
        write_options({**place, "topic": "t", "typed": "true", "schema.registry.url": "r:8081"})


def test_columns_of_a_key_are_raw_beside_a_raw_value_unless_a_format_says_otherwise():
    for options in ({"key.fields": "id"}, {"value.format": "raw", "key.format": "raw", "key.fields": "id"}):
        typed = read_options({**READ, **options}, streaming=False).typed
        assert (typed.layout.value, typed.layout.key, typed.layout.key_fields) == ("raw", "raw", ("id",))


TYPED = ("mode", "columnNameOfCorruptRecord", "dlq.topic", "dlq.name")


def test_every_option_of_the_table_is_accepted_where_it_acts():
    texts = {
        "path": "/log", "assign": '{"a":[0]}', "subscribe": "a", "subscribePattern": "a", "columns": "value",
        "includeHeaders": "true", "includeTiered": "true", "isolation": "read_committed",
        "exactlyOnce": "true", "transaction.timeout.ms": "1m", "startingOffsets": "earliest", "startingTimestamp": "1",
        "startingOffsetsByTimestamp": '{"a":{"0":1}}', "startingOffsetsByTimestampStrategy": "error",
        "endingOffsets": "latest", "endingTimestamp": "1", "endingOffsetsByTimestamp": '{"a":{"0":1}}',
        "failOnDataLoss": "true", "pushdown": "true", "maxTriggerDelay": "1s", "topic": "a",
        "partitioner": "sticky", "compression": "none", "checkpointLocation": "/c", "queryName": "q",
        "kafka.bootstrap.servers": "one:9092,[::1]:9093", "shortCircuit": "true",
        "value.format": "json", "key.format": "raw", "value.fields-include": "EXCEPT_KEY", "mode": "PERMISSIVE",
        "typed": "true", "metadata": "true", "rescued": "true", "schema.evolution": "restart",
        "view": "latest",
    }  # fmt: skip
    for name, uses in ((name, uses) for name, uses in OPTIONS.items() if name not in NAMES):
        for use in uses:
            base = {"path": "/log"} if use == Use.WRITE or name in ("assign", "subscribePattern") else READ
            together = {"txnId": "a", "txnVersion": "1"} if name.startswith("txn") else {}
            if name.startswith(("kafka.security", "kafka.sasl", "kafka.ssl")):
                secured = JAAS if name == "kafka.sasl.jaas.config" else USER
                secured = secured | (STORES if "store" in name else FILES)
                together = {f"kafka.{each}": value for each, value in secured.items()}
            if name in ("metadata", "rescued", "schema.evolution") or name.endswith(".subject"):
                together = {"typed": "true"}
            if name.startswith(("key.f", "value.f")) or name in TYPED:
                together = {
                    "value.format": "json",
                    **({"key.fields": "1a"} if name.startswith(("key.", "value.fields")) else {}),
                }
                together |= {"mode": "PERMISSIVE"} if name.startswith("columnName") else {}
                together |= {"dlq.topic": "d", "dlq.name": "n"} if name.startswith("dlq.") else {}
            if name.startswith("kafka.") or name == "shortCircuit":
                base = {"exactlyOnce": "false"} if use == Use.WRITE else {"subscribe": "a"}
                base["kafka.bootstrap.servers"] = texts["kafka.bootstrap.servers"]
            if name == "tieredTable":
                base = {"kafka.bootstrap.servers": "one:9092", "subscribe": "a", "includeTiered": "true"}
            if name.startswith("storage."):  # by its name, in tests/unit/datasource/delta/test_storage_options.py
                base, texts[name] = {**READ, "includeTiered": "true"}, storage_value(name.removeprefix("storage."))
            if name == "decisionTopic":
                base = {"kafka.bootstrap.servers": "one:9092"}
            if name == "groupId":
                base = {"kafka.bootstrap.servers": "one:9092", "subscribe": "a", "startingOffsets": "group"}
            given = {**base, name: texts.get(name, "1"), **together}
            assert name.lower() in {each.lower() for each in given}
            if use == Use.WRITE:
                write_options(given)
            else:
                read_options(given, streaming=use == Use.STREAM_READ)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "a", "path": "/log", "kafka.bootstrap.servers": "b:1"}, "leave one away"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "b"}, "'b' is no HOST:PORT"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "b:70000"}, "'b:70000' is no HOST:PORT"),
        ({"subscribe": "a", "kafka.bootstrap.servers": " "}, "is empty"),
        (
            {"subscribe": "a", "kafka.bootstrap.servers": "b:1", "includeTiered": "true"},
            "'tieredTable' names",
        ),
        (
            {"subscribe": "a", "kafka.bootstrap.servers": "b:1", "tieredTable": "/t"},
            "needs includeTiered=true",
        ),
        ({"subscribe": "a", "path": "/log", "includeTiered": "true", "tieredTable": "/t"}, "remove it"),
        ({"subscribe": "a", "path": "/log", "shortCircuit": "true"}, "a directory is read directly"),
        ({"subscribe": "a", "path": "/log", "kafka.client.rack": "r"}, "a directory is read directly"),
    ],
)
def test_a_cluster_is_named_instead_of_a_directory(options, line):
    with pytest.raises(InvalidConfigError) as caught:
        read_options(options, streaming=False)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"path": "/log", "decisionTopic": "d"}, "a directory keeps decisions itself"),
        ({"kafka.bootstrap.servers": "b:1", "decisionTopic": "d", "exactlyOnce": "false"}, "needs exactlyOnce=true"),
        ({"kafka.bootstrap.servers": "b:1", "decisionTopic": " "}, "name a topic"),
        ({"kafka.bootstrap.servers": "b:1", "transaction.timeout.ms": "100d"}, "at most 2147483647 ms"),
        ({"kafka.bootstrap.servers": "b:1", "txnId": "~1", "txnVersion": "1"}, "must not begin with '~'"),
    ],
)
def test_decisions_are_kept_by_a_cluster_in_a_topic(options, line):
    with pytest.raises(InvalidConfigError) as caught:
        write_options(options)
    assert line in str(caught.value)
    assert write_options({"kafka.bootstrap.servers": "b:1"}).decision_topic == "__pylog_decisions"
