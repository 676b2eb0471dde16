"""Rates and lags out of two looks."""

import logstore
from logstore import OffsetRange
from logstore.tools.top import Look, Reader, TopicLook, look_at, view


def topic(*extents, id="a", size_bytes=0):
    return TopicLook(id, {p: OffsetRange(*each) for p, each in enumerate(extents)}, size_bytes, len(extents))


def test_rates_count_what_came_in_and_what_readers_took_per_second():
    before = Look(1000, {"t": topic((0, 10), (0, 0))}, [Reader("group", "g", "Stable", {"t": {0: 2, 1: 0}})])
    now = Look(3000, {"t": topic((5, 40), (0, 10))}, [Reader("group", "g", "Stable", {"t": {0: 12, 1: 0}})])
    found = view(before, now)
    (row,), (reader,) = found.topics, found.readers
    assert (row["records"], row["in_per_s"], row["out_per_s"]) == (45, 20.0, 5.0)
    assert (reader["reader"], reader["lag"], reader["out_per_s"]) == ("g", 28 + 10, 5.0)


def test_a_new_topic_and_one_that_was_made_again_have_no_rate():
    before = Look(0, {"again": topic((0, 99), id="old")}, [])
    now = Look(1000, {"again": topic((0, 5), id="new"), "new": topic((0, 5))}, [])
    assert [row["in_per_s"] for row in view(before, now).topics] == [None, None]


def test_the_busiest_topics_and_the_readers_that_are_most_behind_come_first():
    names = ("idle", "slow", "busy")
    before = Look(0, {name: topic((0, 0)) for name in names}, [])
    now_topics = {name: topic((0, end)) for name, end in zip(names, (0, 5, 50), strict=True)}
    readers = [Reader("query", "near", "", {"busy": {0: 49}}), Reader("query", "far", "", {"busy": {0: 1}})]
    found = view(before, Look(1000, now_topics, readers))
    assert [row["topic"] for row in found.topics] == ["busy", "slow", "idle"]
    assert [row["reader"] for row in found.readers] == ["far", "near"]


def test_a_reader_of_another_topic_of_that_name_has_no_lag_but_a_line():
    now = Look(0, {"t": topic((0, 9), id="new")}, [Reader("query", "q", "", {"t": {0: 1}, "u": {0: 1}}, {"t": "old"})])
    found = view(now, now)
    assert found.readers == []
    assert [line.split(":")[0] for line in found.problems] == ["query q", "query q"]


def test_a_partition_that_is_not_reached_counts_neither_as_loss_nor_as_growth():
    whole, half = topic((0, 10), (0, 10)), TopicLook("a", {0: OffsetRange(0, 10)}, None, 2)
    assert view(Look(0, {"t": whole}, []), Look(1000, {"t": half}, [])).topics[0]["in_per_s"] == 0
    assert view(Look(0, {"t": half}, []), Look(1000, {"t": whole}, [])).topics[0]["in_per_s"] == 0


def test_a_look_goes_on_behind_what_cannot_be_read(tmp_path):
    with logstore.open(tmp_path / "data") as store:
        for name in ("a", "b", "c"):
            store.create_topic(name)
            store.append(name, {"value": "x"})
    (tmp_path / "data" / "topics" / "a.json").write_text("{")
    (tmp_path / "data" / "b-0").rename(tmp_path / "elsewhere")
    with logstore.open(tmp_path / "data", mode="r") as store:
        look = look_at(store)
    assert {name: [each.count for each in found.extents.values()] for name, found in look.topics.items()} == {
        "b": [], "c": [1]
    }  # fmt: skip
    assert len(look.problems) == 2
