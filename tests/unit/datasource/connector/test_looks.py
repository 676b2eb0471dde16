"""Events of queries tell names, lags, rates and dropped rows, whatever comes late, twice or from other sources."""

import json

import pytest

from datasource.connector.lags import lag
from datasource.connector.looks import COLUMNS, ENDED_MAX, as_json, ended, idle, progressed, rows, started
from logstore.errors import InvalidRequestError


def offset(*ends, place="/data", topic="orders", misfits=0):
    named = {"place": place} if place else {}
    if misfits:
        named["misfits"] = {"stream": "s", "batch": 4, "count": misfits, "since": 9}
    return json.dumps({"v": 1, **named, "ids": {topic: "id"}, "offsets": {topic: dict(enumerate(ends))}})


def source(read, latest, **more):
    return counted({"endOffset": offset(*read, **more), "latestOffset": offset(*latest, **more)})


def counted(offsets, rows=10, rate=5.0):
    return offsets | {"numInputRows": rows, "inputRowsPerSecond": rate, "processedRowsPerSecond": 2 * rate}


def progress(batch, *sources, run="r1", query="q1", name="orders", dropped=()):
    return {
        "id": query,
        "runId": run,
        "name": name,
        "timestamp": "2026-11-28T16:00:00.000Z",
        "batchId": batch,
        "sources": sources or (source((4, 7), (6, 7)),),
        "stateOperators": [{"numRowsDroppedByWatermark": count} for count in dropped],
        "numInputRows": None,
        "inputRowsPerSecond": None,
        "processedRowsPerSecond": None,
    }


def only(looks):
    (look,) = looks.values()
    return look


def test_a_batch_tells_lags_as_kafkas_source_and_rates():
    looks = progressed(started({}, "q1", "r1", "orders"), progress(3, source((4, 7, 0), (6, 7, 1))))
    look = only(looks)
    assert (look.name, look.state, look.batch, look.rows) == ("orders", "running", 3, 10)
    assert (look.input_rows_per_s, look.processed_rows_per_s) == (5.0, 10.0)
    (found,) = as_json(look)["sources"]
    assert found == {
        "place": "/data",
        "topics": {"orders": {"0": 2, "1": 0, "2": 1}},
        "minOffsetsBehindLatest": 0,
        "avgOffsetsBehindLatest": 1,
        "maxOffsetsBehindLatest": 2,
        "offsetsBehindLatest": 3,
        "misfits": None,
    }
    assert look.progress_s == 1_795_881_600
    assert json.loads(json.dumps(as_json(look))) == as_json(look)


def test_a_batch_that_is_reported_again_counts_once():
    looks = progressed({}, progress(3, dropped=(1, 2)))
    assert progressed(looks, progress(3, dropped=(1, 2))) is looks
    again = only(progressed(looks, progress(4, dropped=(0, 5))))
    assert (again.rows, again.dropped_rows) == (20, 8)


def test_another_run_has_its_own_name_and_events_of_the_run_before_are_dropped():
    looks = progressed(started({}, "q1", "r1", "orders"), progress(3))
    looks = started(looks, "q1", "r2", "renamed")
    assert (only(looks).name, only(looks).rows, only(looks).batch) == ("renamed", 0, -1)
    for late in (
        lambda: progressed(looks, progress(4)),
        lambda: idle(looks, "q1", "r1"),
        lambda: ended(looks, "q1", "r1", failed=False),
    ):
        assert late() is looks
    assert started(looks, "q1", "r2", "renamed") is looks


def test_a_run_whose_start_was_not_seen_follows_one_that_has_ended():
    looks = ended(progressed({}, progress(9)), "q1", "r1", failed=False)
    look = only(progressed(looks, progress(1, run="r2", name="renamed")))
    assert (look.name, look.run_id, look.state, look.batch) == ("renamed", "r2", "running", 1)


def test_an_idle_query_has_no_rates_and_keeps_its_lag():
    look = only(idle(progressed({}, progress(3)), "q1", "r1"))
    assert (look.input_rows_per_s, look.processed_rows_per_s, look.state) == (0, 0, "running")
    assert look.sources[0].summary["offsetsBehindLatest"] == 2


@pytest.mark.parametrize(("failed", "state"), [(False, "stopped"), (True, "failed")])
def test_a_query_that_has_ended_says_how(failed, state):
    look = only(ended(progressed({}, progress(3)), "q1", "r1", failed=failed))
    assert (look.state, look.input_rows_per_s, look.batch) == (state, 0, 3)


def test_as_many_ended_queries_are_kept_as_promised_and_all_that_run():
    looks = started({}, "runs", "r", None)
    for number in range(ENDED_MAX + 5):
        looks = ended(started(looks, f"q{number}", "r", None), f"q{number}", "r", failed=False)
    assert list(looks) == ["runs", *(f"q{number}" for number in range(5, ENDED_MAX + 5))]


def test_a_query_without_a_name_has_its_id():
    assert only(started({}, "q1", "r1", None)).name == "q1"
    assert only(progressed({}, progress(0, name=None))).name == "q1"


def test_rates_that_are_no_numbers_are_zero():
    for rate in (float("nan"), float("inf")):
        batch = progress(0, counted({}, rate=rate), source((1,), (1,)))
        assert only(progressed({}, batch)).input_rows_per_s == 5
    first = counted({}) | {"inputRowsPerSecond": None}
    assert only(progressed({}, progress(0, first))).input_rows_per_s == 0


def test_other_sources_are_not_shown_and_do_not_disturb():
    others = [
        counted({"endOffset": end, "latestOffset": end}, 1)
        for end in (None, "3", "no JSON", '{"orders":{"0":3}}', {"v": 2})
    ]
    mixed = progress(0, *others, source((1,), (4,), place=""))
    look = only(progressed({}, mixed))
    assert [(each.place, each.summary["offsetsBehindLatest"]) for each in look.sources] == [("", 3)]
    assert lag(mixed)["offsetsBehindLatest"] == 3
    alone = progressed({}, progress(0, *others))
    assert [row["behind"] for row in rows(alone.values())] == [None]


def test_each_source_of_pylog_has_a_row():
    two = progress(2, source((1,), (4,)), source((0, 0), (1, 1), place="b:9092", topic="more", misfits=5), dropped=(3,))
    looks = started(progressed({}, two), "q2", "r", "young")
    table = [tuple(row[name] for name in COLUMNS) for row in rows(looks.values())]
    assert table == [
        ("orders", "running", 2, "/data", "orders", 3, 3.0, 3, 3, 10.0, 20.0, 3, None),
        ("orders", "running", 2, "b:9092", "more", 1, 1.0, 1, 2, 10.0, 20.0, 3, 5),
        ("young", "running", None, None, None, None, None, None, None, 0.0, 0.0, 0, None),
    ]
    assert lag(two)["misfits"] == looks["q1"].misfits == 5


def test_no_progress_is_one_line_that_names_the_observer():
    with pytest.raises(InvalidRequestError, match=r"no progress yet: .*datasource\.observe"):
        lag(None)
