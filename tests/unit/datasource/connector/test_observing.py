"""The page and the arguments of an observer, with Spark's own events; tests/spark/test_observing.py has the queries."""

import json
import socket
import struct
import threading
import urllib.error
import urllib.request
import uuid
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from datasource import observe
from datasource.connector.observing import HELP
from logstore.errors import InvalidRequestError

QUERY, RUN = str(uuid.uuid4()), str(uuid.uuid4())


class Session:
    """Stands for a session: it keeps the listeners, and a test hands events to them."""

    def __init__(self):
        self.streams, self.active, self.listeners = self, [], []

    def addListener(self, listener):
        self.listeners.append(listener)

    def removeListener(self, listener):
        self.listeners.remove(listener)

    def start(self, name='or"ders'):
        event = {"id": QUERY, "runId": RUN, "name": name, "timestamp": "2026-11-28T16:00:00.000Z"}
        for listener in self.listeners:
            listener.onQueryStarted(QueryStartedEvent.fromJson(event))

    def batch(self, number=0, name='or"ders'):
        for listener in self.listeners:
            listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress(number, name)}))

    def end(self, exception=None):
        event = {"id": QUERY, "runId": RUN, "exception": exception, "errorClassOnException": None}
        for listener in self.listeners:
            listener.onQueryTerminated(QueryTerminatedEvent.fromJson(event))


ENDED = SimpleNamespace(id=QUERY, runId=RUN, isActive=False)  # a query as Spark gives it


def offset(*ends):
    misfits = {"stream": "s", "batch": 1, "count": 0, "since": 0}
    named = {"v": 1, "place": "/data", "misfits": misfits}
    return named | {"ids": {"orders": "id"}, "offsets": {"orders": dict(enumerate(ends))}}


def progress(number, name):
    return {
        "id": QUERY,
        "runId": RUN,
        "name": name,
        "timestamp": "2026-11-28T16:00:00.000Z",
        "batchId": number,
        "batchDuration": 1,
        "numInputRows": 10,
        "inputRowsPerSecond": 5.0,
        "processedRowsPerSecond": 7.0,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "observedMetrics": {},
        "sources": [
            {
                "description": "Python",
                "startOffset": "null",
                "endOffset": json.dumps(offset(4, 7)),
                "latestOffset": json.dumps(offset(6, 7)),
                "numInputRows": 10,
                "inputRowsPerSecond": 5.0,
                "processedRowsPerSecond": 7.0,
            }
        ],
        "sink": {"description": "noop", "numOutputRows": 10},
    }


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def seen(session):
    with observe(session, port=0) as made:
        yield made


def page(seen, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{seen.port}{path}", timeout=60) as answer:
        return answer.read().decode()


def samples(seen):
    found = text_string_to_metric_families(page(seen))
    return {(s.name, s.labels.get("partition")): (s.labels, s.value) for family in found for s in family.samples}


def test_the_page_has_every_metric_of_a_query_that_runs(session, seen):
    assert page(seen) == ""
    session.start()
    session.batch()
    found = samples(seen)
    assert {name for name, _ in found} == HELP.keys()
    labels = {"query": 'or"ders', "id": QUERY}
    assert found["pylog_query_running", None] == (labels, 1)
    assert found["pylog_query_rows_total", None] == (labels, 10)
    of_partition = labels | {"place": "/data", "topic": "orders", "partition": "0"}
    assert found["pylog_query_offsets_behind_latest", "0"] == (of_partition, 2)
    assert found["pylog_query_offsets_behind_latest", "1"][1] == 0
    assert [found[f"pylog_query_{of}_offsets_behind_latest", None][1] for of in ("min", "avg", "max")] == [0, 1, 2]
    session.end()
    assert {(name, value) for (name, _), (_, value) in samples(seen).items()} == {
        ("pylog_query_running", 0), ("pylog_query_rows_total", 10), ("pylog_query_dropped_rows_total", 0),
        ("pylog_query_misfits_total", 0),
    }  # fmt: skip


def test_other_paths_are_told_where_the_metrics_are(seen):
    assert page(seen, "/metrics?name[]=x") == ""
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        page(seen, "/")
    assert refused.value.read() == b"the metrics are at /metrics\n"
    refused.value.close()


def test_a_peer_that_goes_away_leaves_no_traceback_on_the_terminal(session, seen, capfd):
    session.start()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", seen.port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the end is a reset
            peer.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert "pylog_query_running" in page(seen)
    assert capfd.readouterr() == ("", "")


def test_the_table_is_for_people(session, seen):
    assert str(seen) == "no streaming query was seen so far"
    session.start()
    session.batch()
    title, row = str(seen).splitlines()
    assert title.split()[:5] == ["QUERY", "STATE", "BATCH", "PLACE", "TOPICS"]
    assert row.split() == ['or"ders', "running", "0", "/data", "orders", "0", "1.0", "2", "2", "5.0", "7.0", "0", "0"]
    assert repr(seen) == f"QueryObserver(1 queries at http://127.0.0.1:{seen.port}/metrics)"


def test_a_port_in_use_is_one_line_and_leaves_no_listener(session, seen):
    with pytest.raises(InvalidRequestError, match=rf"^port {seen.port} of 127.0.0.1 is in use: give another one, or 0"):
        observe(session, port=seen.port)
    assert len(session.listeners) == 1


@pytest.mark.parametrize("port", [-1, 65536, "9400", True, 1.5])
def test_what_is_no_port_is_refused(session, port):
    with pytest.raises(InvalidRequestError, match="a whole number up to 65535; 0: any that is free; None: no page"):
        observe(session, port=port)
    assert session.listeners == []


def test_what_is_no_session_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^observe\(\) takes a SparkSession, not str$"):
        observe("data")


def test_two_observers_see_the_same_and_one_ends_without_the_other(session, seen):
    second = observe(session)
    session.start()
    session.batch()
    assert second.queries() == seen.queries()
    second.close()
    second.close()
    session.batch(1)
    assert [each.queries()[0]["batch"] for each in (seen, second)] == [1, 0]
    assert (second.port, seen.port is None) == (None, False)


def test_the_port_is_free_again_after_the_end(session):
    with observe(session, port=0) as first:
        port = first.port
    with observe(session, port=port) as again:
        assert again.port == port
    assert session.listeners == []


def test_the_progress_of_a_query_that_has_ended_waits_for_its_end(session, seen):
    session.start()

    def late():
        session.batch()
        session.end()

    thread = threading.Timer(0.05, late)
    thread.start()
    assert seen.last_progress(ENDED, timeout_s=60)["batchId"] == 0
    thread.join()
    assert seen.queries()[0]["state"] == "stopped"
    assert seen.last_progress('or"ders') is seen.last_progress(QUERY)


def test_a_query_that_nobody_saw_is_one_line(session, seen):
    session.start("orders")
    with pytest.raises(InvalidRequestError, match=r"^no query 'ordrs' was seen; did you mean 'orders'\?$"):
        seen.last_progress("ordrs")
    with pytest.raises(
        InvalidRequestError, match=r"^there is no progress of query 'orders' yet: no batch of it is over$"
    ):
        seen.last_progress("orders")


def test_queries_that_run_already_are_seen_at_once(session):
    session.active = [SimpleNamespace(lastProgress=found) for found in (progress(7, "orders"), None)]
    with observe(session) as seen:
        assert [(each["query"], each["batch"]) for each in seen.queries()] == [("orders", 7)]
