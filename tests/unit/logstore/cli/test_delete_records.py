"""`pylog delete-records`: the log start moves, as asked on the command line or in the file of Kafka's tool."""

import json

import pyarrow as pa
import pytest

import logstore


@pytest.fixture(autouse=True)
def store(path):
    with logstore.open(path) as opened:
        for name in ("orders", "users"):
            opened.create_topic(name, partitions=2)
            partitions = pa.array([0] * 5 + [1] * 3, pa.int32())
            opened.append(name, pa.table({"value": ["v"] * 8, "partition": partitions}))
        yield opened


def starts(store, topic):
    return [extent.start for _, extent in sorted(store.offsets(topic).items())]


def planned(*entries, **more):
    keys = ("topic", "partition", "offset")
    return json.dumps({"partitions": [dict(zip(keys, entry, strict=True)) for entry in entries], **more})


def test_records_below_the_offset_are_gone_and_what_is_left_is_shown(pylog, store):
    ran = pylog("delete-records", "orders", "--partition", 0, "--offset", 2, "--output", "json").ok()
    assert ran.json == [{"topic": "orders", "partition": 0, "start": 2, "end": 5}]
    assert starts(store, "orders") == [2, 0]
    assert pylog("consume", "orders", "--from-beginning", "-f", "%p:%o ").ok().out == "0:2 0:3 0:4 1:0 1:1 1:2 "


def test_minus_one_deletes_all_and_less_than_the_start_nothing(pylog, store):
    pylog("delete-records", "--topic", "orders", "--partition", 1, "--offset", -1).ok()
    shown = pylog("delete-records", "orders", "--partition", 1, "--offset", 1).ok().lines
    assert shown[0].split() == ["TOPIC", "PARTITION", "START", "END"]
    assert shown[1].split() == ["orders", "1", "3", "3"]
    assert starts(store, "orders") == [0, 3]


def test_a_file_of_kafkas_tool_names_partitions_of_several_topics(pylog, store, tmp_path):
    plan = planned(("orders", 0, 1), ("users", 1, -1), ("users", 0, 4), version=1)
    file = tmp_path / "plan.json"
    file.write_text(plan)
    rows = pylog("delete-records", "--offset-json-file", file, "--output", "json").ok().json
    assert [(r["topic"], r["partition"], r["start"]) for r in rows] == [
        ("orders", 0, 1),
        ("users", 0, 4),
        ("users", 1, 3),
    ]
    again = pylog("delete-records", "--offset-json-file", "-", "--output", "json", input=plan.encode()).ok()
    assert again.json == rows


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("orders", "--partition", 0, "--offset", 6), "offset 6"),
        (("orders", "--partition", 2, "--offset", 0), "partition"),
        (("order", "--partition", 0, "--offset", 0), "did you mean"),
    ],
)
def test_what_is_not_there_is_an_error_and_nothing_is_deleted(pylog, store, arguments, hint):
    assert hint in pylog("delete-records", *arguments).failed()
    assert starts(store, "orders") == [0, 0]


def test_a_compacted_topic_says_how_its_records_go(pylog, store):
    store.alter_topic("orders", config={"cleanup.policy": "compact"})
    assert "tombstone" in pylog("delete-records", "orders", "--partition", 0, "--offset", 1).failed()


def test_a_plan_stops_at_what_is_wrong_and_says_what_was_done(pylog, store):
    plan = planned(("orders", 0, 1), ("users", 0, 99))
    ran = pylog("delete-records", "--offset-json-file", "-", "--output", "json", input=plan.encode())
    assert (ran.code, [row["topic"] for row in ran.json]) == (1, ["orders"])
    plan = planned(("orders", 0, 2), ("nobody", 0, 0))
    assert "nobody" in pylog("delete-records", "--offset-json-file", "-", input=plan.encode()).failed()
    assert starts(store, "orders") == [1, 0]


@pytest.mark.parametrize(
    "plan",
    [
        "{",
        "[]",
        "{}",
        planned(("orders", "0", 1)),
        planned(("orders", 0, True)),
        planned(("orders", 0, 1), version=2),
        planned(("orders", 0, 1), ("orders", 0, 2)),
    ],
)
def test_a_file_of_another_form_is_wrong_usage(pylog, store, plan):
    assert pylog("delete-records", "--offset-json-file", "-", input=plan.encode()).code == 2
    assert starts(store, "orders") == [0, 0]


@pytest.mark.parametrize("arguments", [(), ("orders",), ("orders", "--partition", 0), ("--offset", 3)])
def test_both_or_neither_way_of_saying_it_is_wrong_usage(pylog, arguments):
    assert pylog("delete-records", *arguments).code == 2
    assert pylog("delete-records", "orders", "--offset-json-file", "-", input=b"{}").code == 2
