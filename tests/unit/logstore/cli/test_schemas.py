"""`pylog schemas`, and the columns of `pylog topics`."""

import json

import logstore
from logstore.schemas.declared import fields_of


def test_a_topics_columns_are_registered_and_shown(pylog, path):
    pylog("topics", "create", "orders", "--value-schema", "user string, n tinyint", "--key-schema", "id bigint").ok()
    assert pylog("schemas", "list").ok().lines == [
        "SUBJECT       VERSION  ID  TYPE  DELETED",
        "orders-key          1   2  JSON       no",
        "orders-value        1   1  JSON       no",
    ]
    found = pylog("schemas", "get", "orders-value", "--output", "json").ok().json
    assert (found["version"], found["id"], found["columns"]) == (1, 1, "user string, n tinyint")
    assert pylog("schemas", "get", "--id", 1).ok().json == json.loads(found["schema"])
    with logstore.open(path) as store:
        assert [field.name for field in fields_of(store.schemas.latest("orders-key").schema)] == ["id"]


def test_a_schema_comes_from_a_file_or_as_columns(pylog, path, tmp_path):
    pylog("topics", "create", "orders").ok()
    file = tmp_path / "orders.json"
    file.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    ran = pylog("schemas", "register", "a-value", file).ok()
    assert ran.err == "subject a-value has the schema as version 1, with id 1\n"
    assert pylog("schemas", "register", "b-value", file, "--output", "json").ok().json[0]["id"] == 1
    pylog("topics", "alter", "orders", "--value-schema", file).ok()
    assert pylog("schemas", "register", "c-value", "n bigint").ok().lines[1].split() == [
        "c-value", "1", "2", "JSON", "no",
    ]  # fmt: skip
    assert "nope.json: no such file" in pylog("schemas", "register", "d-value", tmp_path / "nope.json").failed()
    assert "write columns and types" in pylog("schemas", "register", "d-value", "n bigin").failed()
    assert "level BACKWARD" in pylog("schemas", "register", "c-value", "n string").failed()


def test_columns_that_are_none_make_neither_topic_nor_directory(pylog, path):
    assert "write columns and types" in pylog("topics", "create", "orders", "--value-schema", "n bigin").failed()
    assert "needs its schema" in pylog("topics", "create", "orders", "--value-format", "json").failed()
    assert not path.exists()
    pylog("topics", "create", "orders").ok()
    assert pylog("topics", "alter", "orders").code == 2
    assert pylog("topics", "create", "orders", "--if-not-exists", "--value-schema", "n int").ok()
    assert pylog("schemas", "list").ok().lines == []


def test_a_schema_is_checked_before_it_is_registered(pylog):
    pylog("topics", "create", "orders", "--value-schema", "n bigint, user string").ok()
    assert pylog("schemas", "check", "orders-value", "n bigint").ok().err == "subject orders-value can get the schema\n"
    assert pylog("schemas", "check", "orders-value", "n bigint, user string").ok()
    assert pylog("schemas", "check", "other-value", "n string").ok()
    refused = pylog("schemas", "check", "orders-value", "n int, user bigint", "--output", "json")
    assert refused.code == 1
    assert [row["reason"].partition(":")[0] for row in refused.json] == ["it cannot read version 1"] * 2
    assert "level BACKWARD: the schema cannot be registered" in refused.err
    other = pylog("schemas", "check", "orders-value", "n bigint", "--format", "avro")
    assert "version 1 is of type JSON, and not AVRO: give the format json" in other.out
    assert pylog("schemas", "list", "other-value").code == 1


def test_the_subject_may_be_named_by_the_record(pylog, tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text('{"type": "record", "name": "Order", "namespace": "shop", "fields": []}')
    by = ("--value-schema", file, "--subject-name-strategy")
    pylog("topics", "create", "a", *by, "RecordName").ok()
    pylog("topics", "create", "b", *by, "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy").ok()
    pylog("topics", "create", "c", *by, "TopicName").ok()
    rows = pylog("schemas", "list", "--output", "json").ok().json
    assert [(row["subject"], row["id"]) for row in rows] == [("b-shop.Order", 1), ("c-value", 1), ("shop.Order", 1)]
    assert "did you mean 'RecordName'" in pylog("topics", "create", "d", *by, "RecordNames").failed()
    untitled = pylog("topics", "create", "d", "--value-schema", "n int", "--subject-name-strategy", "RecordName")
    assert "needs a schema with a name" in untitled.failed()
    assert "needs a schema" in pylog("topics", "create", "d", "--subject-name-strategy", "RecordName").failed()


def test_versions_are_deleted_and_levels_set(pylog):
    pylog("topics", "create", "orders", "--value-schema", "n bigint").ok()
    assert pylog("schemas", "level").ok().lines[1].split() == ["-", "BACKWARD"]
    assert pylog("schemas", "level", "orders-value", "--set", "none").ok().lines[1].split() == ["orders-value", "NONE"]
    pylog("schemas", "register", "orders-value", "n string").ok()
    assert len(pylog("schemas", "list", "orders-value").ok().lines) == 3
    assert pylog("schemas", "delete", "orders-value", "--version", 1).ok().err == "deleted 1 version of orders-value\n"
    assert [row["version"] for row in pylog("schemas", "list", "orders-value", "--output", "json").json] == [2]
    assert pylog("schemas", "get", "orders-value", "--version", 1, "--output", "json").ok().json["deleted"]
    assert "is not deleted: delete it first" in pylog("schemas", "delete", "orders-value", "--permanent").failed()
    gone = pylog("schemas", "delete", "orders-value", "--version", 1, "--permanent", "--yes", "--output", "json").ok()
    assert [row["version"] for row in gone.json] == [1]
    assert "no version 1, but 2" in pylog("schemas", "get", "orders-value", "--version", 1).failed()
    last = pylog("schemas", "get", "orders-value", "--version", "latest", "--output", "json").ok().json
    assert last["version"] == 2
    for none in ("0", "-1", "last"):
        done = pylog("schemas", "get", "orders-value", "--version", none)
        assert (done.code, f"{none!r} is no version: a number from 1, or latest" in done.err) == (2, True)
    assert pylog("schemas", "level", "orders-value", "--unset").ok().lines[1].split() == ["orders-value", "BACKWARD"]


def test_wrong_usage_is_told(pylog):
    pylog("topics", "create", "orders").ok()
    for wrong in (("get",), ("get", "s", "--id", 1), ("get", "--id", 1, "--version", 1), ("infer",)):
        assert pylog("schemas", *wrong).code == 2, wrong
    assert pylog("schemas", "level", "--unset").code == 2
    assert "did you mean 'NONE'" in pylog("schemas", "level", "--set", "nonne").failed()
    assert "full is a level, which --set takes" in pylog("schemas", "level", "full").err
    assert "it has none yet" in pylog("schemas", "list", "orders-value").failed()


def test_a_file_that_is_no_schema_is_named(pylog, tmp_path):
    pylog("topics", "create", "orders").ok()
    for name, text, why in (
        ("a.avsc", '{"type":"record"', "a.avsc: no AVRO schema: Expecting"),
        ("b.txt", "hello", "b.txt: schema 'hello': write columns and types"),
    ):
        (tmp_path / name).write_text(text)
        for command in (("schemas", "register", "s"), ("topics", "create", "t", "--value-schema")):
            assert why in pylog(*command, tmp_path / name).failed()


def test_columns_are_inferred_from_a_topic_or_a_file(pylog, tmp_path):
    pylog("topics", "create", "orders", "--partitions", 2).ok()
    assert "nothing tells the columns" in pylog("schemas", "infer", "orders").failed()
    pylog("produce", "orders", input='{"n": 1, "user": "Ada"}\n{"n": 2.5}\n').ok()
    assert pylog("schemas", "infer", "orders").ok().out == "n double, user string\n"
    found = pylog("schemas", "infer", "orders", "--output", "json").ok().json
    assert (found["values"], found["columns"]) == (2, "n double, user string")
    file = tmp_path / "lines.jsonl"
    file.write_text('{"n": 1}\n\n{"n": "x"}\n')
    assert "value 2: n is string here, and bigint before" in pylog("schemas", "infer", "--file", file).failed()
    assert pylog("schemas", "infer", "--file", file, "--max-messages", 1).ok().out == "n bigint\n"
