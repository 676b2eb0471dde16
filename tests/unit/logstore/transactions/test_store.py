"""Transactions on real logs: what readers see, whatever fails in between."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import logstore
from logstore import BatchConflictError, DiskFullError, TransactionAbortedError
from logstore.store.transactions.state import TransactionOwner
from logstore.store.transactions.transaction import Prepared
from tests.support.inside import journal_of
from tests.support.partition import ended
from tests.support.transactions import HOST, alive, everything, is_settled, part, values

# --- all or nothing


def test_a_transaction_is_visible_everywhere_when_its_block_ends_and_nowhere_before(store):
    with store.transaction() as transaction:
        store.append("a", pa.table({"value": ["x", "y", "z"]}), transaction=transaction)
        store.append("b", pa.table({"value": ["w"]}), transaction=transaction)
        assert (values(store), values(store, "b")) == ([], [])
        assert everything(store) == ["x", "y", "z"]
    assert (values(store), values(store, "b")) == (["x", "y", "z"], ["w"])
    assert is_settled(store)


def test_an_exception_takes_all_of_it_back(store):
    def fail():
        with store.transaction() as transaction:
            store.append("a", pa.table({"value": ["x"]}), transaction=transaction)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert values(store) == []
    assert is_settled(store)


def test_a_transaction_whose_append_failed_can_only_be_aborted(store):
    transaction = part(store, ["x"])
    with pytest.raises(logstore.UnknownTopicError):
        part(store, ["x"], topic="none")
    rows = pa.table({"value": ["y"], "partition": [0]})
    os_files, write = store.env.files, type(store.env.files).write

    def fail(self, where, *args):
        if str(where).endswith(".log"):
            raise logstore.StorageError("broken")
        write(self, where, *args)

    type(os_files).write = fail
    try:
        with pytest.raises(logstore.StorageError):
            store.append("a", rows, transaction=transaction)
    finally:
        type(os_files).write = write
    for act in (
        lambda: store.append("a", rows, transaction=transaction),
        transaction.prepare,
        transaction.commit,
    ):
        with pytest.raises(TransactionAbortedError, match="an append of it failed"):
            act()
    transaction.abort()
    assert values(store) == []
    assert is_settled(store)


def breaking(store, monkeypatch, breaks):
    """Writes of which `breaks(path, data)` is true fail."""
    files, write = type(store.env.files), type(store.env.files).write

    def broken(self, where, position, data):
        if breaks(str(where), bytes(data)):
            raise DiskFullError("no room")
        write(self, where, position, data)

    monkeypatch.setattr(files, "write", broken)


def test_a_block_that_cannot_be_committed_holds_nobody_up(store, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(store, patch, lambda path, data: b'["decide",' in data)
        with pytest.raises(DiskFullError), store.transaction() as transaction:
            store.append("a", pa.table({"value": ["x"]}), transaction=transaction)
    assert is_settled(store)
    assert values(store) == []


def test_a_block_that_goes_on_after_a_failed_append_is_aborted_at_its_end(store, monkeypatch):
    rows = pa.table({"value": ["x"]})

    def go_on():
        with store.transaction() as transaction:
            store.append("a", rows, transaction=transaction)
            with monkeypatch.context() as patch:
                breaking(store, patch, lambda path, data: path.endswith(".log"))
                with pytest.raises(DiskFullError):
                    store.append("a", rows, transaction=transaction)

    with pytest.raises(TransactionAbortedError, match="an append of it failed"):
        go_on()
    assert is_settled(store)
    assert values(store) == []


def test_plain_appends_behind_an_open_transaction_wait_for_it(store):
    with store.transaction() as transaction:
        store.append("b", pa.table({"value": ["in"]}), transaction=transaction)
        store.append("b", pa.table({"value": ["behind"]}))
        assert values(store, "b") == []
    assert values(store, "b") == ["behind", "in"]


def test_sequences_go_on_over_appends_partitions_and_topics(store):
    with store.transaction() as transaction:
        for n in range(5):
            for topic in ("a", "b"):
                store.append(topic, pa.table({"value": [f"{n}"] * 3}), transaction=transaction)
    assert values(store) == values(store, "b") == sorted("01234" * 3)


def test_attempts_that_are_not_named_in_the_commit_leave_nothing(store):
    """(T6) A task was retried and speculated: three attempts wrote, one counts."""
    attempts = [part(store, ["x", "y"], task=f"0.{n}", driver=alive()) for n in range(3)]
    prepared = [pickle.loads(pickle.dumps(a.prepare())) for a in attempts]
    store.transactions.commit([prepared[1]])
    assert values(store) == ["x", "y"]
    assert len(everything(store)) == 6
    assert is_settled(store)


def test_a_loser_that_still_appends_while_the_decision_is_made_is_refused(store):
    """(T4) No write lands after its transaction has ended."""
    winner, loser = (part(store, ["x"], task=t) for t in "wl")
    store.transactions.commit([winner.prepare()])
    with pytest.raises(TransactionAbortedError, match="was committed without it"):
        store.append("a", pa.table({"value": ["late"]}), transaction=loser)
    assert is_settled(store)
    assert everything(store) == ["x", "x"]


def test_a_zombie_is_refused_after_its_registration_was_aborted(store, path):
    """(T4) It held its batches for long: somebody else has aborted it meanwhile."""
    zombie = part(store, ["x"])
    with logstore.open(path) as other:
        other.transactions.abort_attempt(zombie.producer, reason="gone for long")
    for _ in range(2):
        with pytest.raises(TransactionAbortedError, match="gone for long"):
            store.append("a", pa.table({"value": ["late"]}), transaction=zombie)
    assert is_settled(store)
    with pytest.raises(TransactionAbortedError):
        store.transactions.commit([zombie_prepared(zombie)])


def zombie_prepared(transaction) -> Prepared:
    return Prepared(
        name="q",
        batch_id=0,
        run="r",
        kept=True,
        producer=transaction.producer,
        content=logstore.store.transactions.state.Content(),
    )


def test_a_marker_that_comes_late_does_not_end_the_next_transaction(store):
    """(T3) Markers carry the epoch of their transaction, and every transaction has its own."""
    first = part(store, ["x"], topic="b")
    store.transactions.commit([first.prepare()])
    store.flush()
    second = part(store, ["y"], topic="b", batch_id=1)
    store.transactions.completion.finish("q")
    third = None
    while third is None or third.producer[0] != first.producer[0]:
        third = part(store, ["z"], topic="b", batch_id=1, task=str(third))
    with pytest.raises(logstore.ProducerFencedError):
        ended(store.log("b", 0), *first.producer, commit=False)
    assert values(store, "b") == ["x"]
    store.transactions.commit([second.prepare(), third.prepare()])
    assert values(store, "b") == ["x", "y", "z"]


# --- replays


@pytest.mark.parametrize("order", [["x", "y", "z"], ["z", "x", "y"]])
def test_the_same_batch_again_writes_nothing(store, order):
    """(T7) The driver died after the commit: the batch comes again, from other tasks, in another order."""
    store.transactions.commit([part(store, ["x", "y"]).prepare(), part(store, ["z"], task="1").prepare()])
    again = [
        part(store, order[:1], run="r2"),
        part(store, order[1:], run="r2", task="1"),
        part(store, [], run="r2"),
    ]
    assert all(a.is_replay and a.producer is None for a in again)
    store.transactions.commit([a.prepare() for a in again])
    assert values(store) == everything(store) == ["x", "y", "z"]


def test_the_same_batch_again_with_other_rows_is_refused_and_leaves_nothing(store):
    """(T9)"""
    store.transactions.commit([part(store, ["x", "y"]).prepare()])
    with pytest.raises(BatchConflictError, match=r"another content \(as many rows, but not the same ones\): was"):
        store.transactions.commit([part(store, ["x", "Y"], run="r2").prepare()])
    with pytest.raises(BatchConflictError, match=r"another content \(rows: 2, now 1\): was"):
        store.transactions.commit([part(store, ["x"], run="r2").prepare()])
    part(store, ["z"], run="r3", batch_id=3).commit()
    with pytest.raises(BatchConflictError, match="older copy"):
        part(store, ["x"], run="r4", batch_id=2)
    assert values(store) == everything(store) == ["x", "y", "z"]


def test_ids_may_have_gaps_and_last_batches_are_remembered_for_good(store, path):
    """(T9)"""
    for batch_id in (0, 4, 9):
        store.transactions.commit([part(store, [f"{batch_id}"], batch_id=batch_id).prepare()])
    store.close()
    with logstore.open(path) as later:
        assert later.transactions.last_batch("q") == 9
        assert part(later, ["9"], batch_id=9, run="r2").is_replay


def test_a_batch_that_two_drivers_write_at_once_is_there_once(store, path):
    """Two drivers on one checkpoint: the later one takes over, the earlier one cannot commit any more."""
    with logstore.open(path) as other:
        first = part(store, ["x"], run="driver 1").prepare()
        second = part(other, ["x"], run="driver 2")
        with pytest.raises(TransactionAbortedError, match="taken over"):
            store.transactions.commit([first])
        with pytest.raises(TransactionAbortedError, match="taken over"):
            part(store, ["x"], run="driver 1", task="retry")
        other.transactions.commit([second.prepare()])
    assert values(store) == ["x"]
    assert is_settled(store)


def test_a_batch_that_another_run_commits_while_this_one_writes_it_is_compared_with_it(store):
    mine = part(store, ["x"], run="r1")
    prepared = mine.prepare()
    store.transactions.commit([prepared])
    store.transactions.commit([prepared])  # help to finish: the same again
    assert values(store) == ["x"]


# --- the driver dies


def test_a_decision_without_markers_is_visible_and_anyone_finishes_it(store, path, monkeypatch):
    """(T7) The driver is killed between decision and markers."""
    batch = [part(store, ["x", "y"]).prepare(), part(store, ["z"], topic="b", task="1").prepare()]
    monkeypatch.setattr(store.transactions.completion, "finish", lambda name=None: None)
    store.transactions.commit(batch)
    assert not is_settled(store)
    with logstore.open(path, mode="r") as reader:
        assert (values(reader), values(reader, "b")) == (["x", "y"], ["z"])
        assert reader.offsets("b")[0].end == 1
    with logstore.open(path) as other:
        other.transactions.complete_or_abort()
        assert is_settled(other)
    assert (values(store), values(store, "b")) == (["x", "y"], ["z"])


def test_a_decision_that_readers_were_not_told_of_yet_counts(store, path, monkeypatch):
    """The driver is killed while the decision is being fsynced: abort() comes too late, a replay finds it."""
    batch = [part(store, ["x"]).prepare()]
    monkeypatch.setattr(
        store.transactions.completion, "publish", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        store.transactions.commit(batch)
    assert values(store) == []
    with logstore.open(path) as other:
        other.transactions.abort("q", 0, run="r", reason="commit raised")
        assert values(other) == ["x"]
        assert is_settled(other)


def test_abort_after_a_commit_that_failed_half_way_does_nothing(store):
    prepared = part(store, ["x"]).prepare()
    store.transactions.commit([prepared])
    store.transactions.abort("q", 0, run="r", reason="commit raised")
    assert values(store) == ["x"]


def test_abort_leaves_nothing_and_the_batch_can_be_written_again(store):
    part(store, ["x"]).prepare()
    store.transactions.abort("q", 0, run="r", reason="a task failed")
    assert is_settled(store)
    store.transactions.commit([part(store, ["x"], run="r2").prepare()])
    assert values(store) == ["x"]


def test_abort_knows_the_driver_where_no_task_has_reported(store):
    other, mine = part(store, ["x"], driver=alive(), name="other"), part(store, ["x"], driver=alive())
    store.transactions.abort("q", 0, driver=f"{HOST} 2 2", reason="another driver's")
    assert store.transactions.state().is_open(mine.producer)
    store.transactions.abort("q", 0, driver=alive(), reason="a task failed")
    assert not store.transactions.state().is_open(mine.producer)
    assert store.transactions.state().is_open(other.producer)


def test_a_new_run_ends_what_a_dead_one_left(store):
    part(store, ["x"], run="dead").prepare()
    store.transactions.commit([part(store, ["x"], run="alive").prepare()])
    assert (values(store), len(everything(store))) == (["x"], 2)
    assert is_settled(store)


# --- liveness


def test_a_writer_that_is_registered_knows_it_whatever_fails_of_the_run_before(store, monkeypatch):
    """Else nobody could abort it while its process lives."""
    store.transactions.commit([part(store, ["w"], topic="b", name="other").prepare()])
    store.flush()
    part(store, ["x"], run="dead").prepare()
    with monkeypatch.context() as patch:
        breaking(store, patch, lambda path, data: b'["forget",' in data)
        alive = part(store, ["x"], run="alive")
    alive.abort()
    assert values(store) == []
    assert is_settled(store)


@pytest.mark.parametrize("told", [{"run": "r"}, {"driver": alive()}])
def test_a_task_that_comes_when_its_driver_has_given_up_is_refused(store, told):
    """Spark stops tasks without waiting for them: this one would be prepared, and nobody would ever commit it."""
    part(store, ["x"], driver=alive()).prepare()
    late = part(store, [], driver=alive(), task="late")
    store.transactions.abort("q", 0, **told, reason="a task failed")
    with pytest.raises(TransactionAbortedError, match="the driver has ended the batch"):
        store.append("a", pa.table({"value": ["late"]}), transaction=late)
    assert is_settled(store)


def test_a_task_that_comes_when_its_batch_is_committed_and_forgotten_is_refused(store):
    """A batch write is remembered by nothing but its end: its name is never used again."""

    def task():
        return store.transactions.begin(
            "write 1", 0, run="r", owner=TransactionOwner(driver=alive(), timeout_ms=60_000), once=True
        )

    late, winner = task(), task()
    store.append("a", pa.table({"value": ["x"]}), transaction=winner)
    store.transactions.commit([winner.prepare()])
    store.flush()
    store.transactions.completion.finish()
    assert not store.transactions.state().decisions
    with pytest.raises(TransactionAbortedError, match="the driver has ended the batch"):
        store.append("a", pa.table({"value": ["late"]}), transaction=late)


# --- the rest of the world


def test_a_topic_that_was_deleted_in_between_does_not_keep_a_batch_from_its_end(store):
    batch = [part(store, ["x"]).prepare(), part(store, ["z"], topic="b", task="1").prepare()]
    store.delete_topic("b")
    store.create_topic("b")
    store.transactions.commit(batch)
    assert (values(store), values(store, "b")) == (["x"], [])
    assert not store.transactions.completion.has_pending(store.transactions.state())


def test_a_damaged_topic_keeps_no_other_transaction_from_being_forgotten(store, path):
    store.transactions.commit([part(store, ["x"], topic="b", name="other").prepare()])
    description = path / "topics" / "b.json"
    was = description.read_bytes()
    description.write_bytes(b"{")
    store.transactions.commit([part(store, ["x"]).prepare()])
    store.flush("a")
    store.transactions.completion.finish()
    assert [name for name, _ in store.transactions.state().decisions] == ["other"]
    description.write_bytes(was)
    store.flush()
    store.transactions.completion.finish()
    assert not store.transactions.state().decisions


def test_a_store_that_may_only_be_read_shows_what_is_decided(path, monkeypatch):
    with logstore.open(path) as store:
        monkeypatch.setattr(store.transactions.completion, "finish", lambda name=None: None)
        store.transactions.commit([part(store, ["x"]).prepare()])
        (path / "transactions").chmod(0o500)
        try:
            with logstore.open(path, mode="r") as reader:
                assert values(reader) == ["x"]
                assert reader.transactions.settled(lambda: 5) == 5
        finally:
            (path / "transactions").chmod(0o700)


def test_a_full_disk_refuses_the_decision_and_it_can_be_made_later(store, monkeypatch):
    prepared = part(store, ["x"]).prepare()
    files, journal = store.env.files, str(journal_of(store).path)
    write = type(files).write

    def full(self, where, position, data):
        if str(where) == journal and b"decide" in bytes(data):
            write(self, where, position, bytes(data)[:20])
            raise DiskFullError("no room")
        write(self, where, position, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(files), "write", full)
        with pytest.raises(DiskFullError):
            store.transactions.commit([prepared])
    assert values(store) == []
    store.transactions.commit([prepared])
    assert values(store) == ["x"]


def test_a_disk_that_is_full_behind_the_decision_does_not_call_it_a_failure(store, path, monkeypatch):
    """A program that gets an error for a batch write writes it again, and this one would be visible all the same."""
    prepared = part(store, ["x"]).prepare()
    with monkeypatch.context() as patch:
        breaking(store, patch, lambda _, data: b'["durable",' in data and (path / ".reserve").exists())
        store.transactions.commit([prepared])
        assert values(store) == ["x"]
    assert not (path / ".reserve").exists()


def test_state_stays_small(store):
    for batch_id in range(30):
        parts = [part(store, [f"{n}"], batch_id=batch_id, task=str(n)).prepare() for n in range(3)]
        store.transactions.commit(parts)
    state = store.transactions.state()
    assert len(state.attempts) <= 6
    assert len(state.decisions) <= 2
    assert len(state.epochs) <= 6
    assert max(state.epochs.values()) >= 10


def test_ends_over_partitions_and_topics_never_tear(store, path):
    """A reader that plans while batches are committed sees each in all partitions, or in none."""
    from threading import Thread

    def write():
        with logstore.open(path) as other:
            for _ in range(40):
                with other.transaction() as transaction:
                    other.append("a", pa.table({"value": ["x", "x"], "partition": [0, 1]}), transaction=transaction)
                    other.append("b", pa.table({"value": ["x"]}), transaction=transaction)

    writer = Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        ends = store.transactions.settled(
            lambda: (store.offsets("a")[0].end, store.offsets("a")[1].end, store.offsets("b")[0].end)
        )
        # The marker of a batch may be missing here or there, but its record is everywhere.
        seen.add(tuple((end + 1) // 2 for end in ends))
    writer.join()
    assert all(len(set(ends)) == 1 for ends in seen), seen
    assert len(seen) > 3
