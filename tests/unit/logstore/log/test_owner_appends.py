"""The owner of a directory appends without waiting; and sometimes it must not."""

import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.env import Env, OsFiles
from logstore.errors import (
    DamagedBatchError,
    DiskFullError,
    InvalidRecordError,
    PylogError,
    RecordTooLargeError,
    StorageError,
)
from logstore.log.producers import tracker
from logstore.log.validation import AppendInfo, result_of
from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.records.marker import Marker
from tests.support.disk import StillClock
from tests.support.partition import append, appended, batch, contents, make

KINDS = (".log", ".index", ".timeindex", ".txnindex")


class Full(OsFiles):
    """A disk on which only so many bytes of a write have room."""

    room = None

    def write(self, path, position, data):
        if self.room is None or not str(path).endswith(".log"):
            super().write(path, position, data)
            return
        super().write(path, position, bytes(data)[: self.room])
        raise DiskFullError(f"{path}: full", path=str(path), reason="full")


class NoSnapshots(OsFiles):
    """A disk without room for snapshots of producers."""

    is_full = False

    def rename(self, source, target):
        if self.is_full and str(target).endswith(".snapshot"):
            raise DiskFullError(f"{target}: full", path=str(target), reason="full")
        super().rename(source, target)


def now(log, *appends, leader_epoch=0):
    """The outcome of the first of these, which the owner appends without waiting."""
    return log.append_as_leader(appends, leader_epoch=leader_epoch, is_owner=True, may_wait=False)


def at_once(log, data, leader_epoch=0):
    """The same of one; None: that has to wait. Raises its error."""
    outcomes = now(log, data, leader_epoch=leader_epoch)
    return result_of(outcomes) if outcomes else None


def followed_at_once(log, records):
    return log.append_as_follower(records, is_owner=True, may_wait=False)


def warm(root, env, **settings):
    """A log whose end its owner knows."""
    log = make(root, env, **settings)
    appended(log, batch(b"a"), leader_epoch=0)
    return log


def test_it_is_what_a_leader_appends(tmp_path):
    env = Env()
    one, two = (warm(tmp_path, env, name=name, segment_bytes=300) for name in ("one-0", "two-0"))
    for number in range(20):
        done = at_once(one, batch(b"%d" % number, b"x"))
        assert done == appended(two, batch(b"%d" % number, b"x"), leader_epoch=0)
    assert contents(one) == contents(two)
    assert one.segments()[3].path[-24:] == two.segments()[3].path[-24:]
    for log in (one, two):
        assert not list(log.verify())


SENT = st.fixed_dictionaries(
    {
        "size": st.sampled_from([1, 10, 50, 150, 400]),
        "time_ms": st.integers(0, 60),
        "producer": st.one_of(
            st.just((-1, -1, -1)), st.tuples(st.sampled_from([7, 8]), st.integers(0, 1), st.integers(0, 3))
        ),
    }
)


@given(turns=st.lists(st.lists(SENT, min_size=1, max_size=6), min_size=1, max_size=6))
def test_batches_that_are_appended_together_are_what_they_are_one_by_one(turns):
    """Offsets, errors, segments, and every byte of them and of their indexes."""
    with tempfile.TemporaryDirectory() as root:
        settings = {"segment_bytes": 700, "segment_ms": 50, "index_interval_bytes": 200, "max_message_bytes": 400}
        env = Env()
        one, two = (warm(Path(root), env, name=name, **settings) for name in ("one-0", "two-0"))
        for turn in turns:
            made = [
                build([Record(0, 1_000 + sent["time_ms"], None, bytes(sent["size"]))], producer=sent["producer"])
                for sent in turn
            ]
            singly = [outcome(partial(appended, one, bytearray(data), leader_epoch=0)) for data in made]
            together = [told(found) for found in two.append_as_leader(made, is_owner=True)]
            assert together == singly
        assert files_of(one) == files_of(two)
        assert not list(two.verify())


FOLLOWED = st.fixed_dictionaries(
    {
        "size": st.sampled_from([1, 50, 150]),
        "time_ms": st.integers(0, 60),
        "producer": st.sampled_from([(-1, -1, -1)] * 4 + [(7, 0, 0)]),
        "how": st.sampled_from(["good"] * 12 + ["gap", "old", "epoch", "damaged", "cut", "transactional"]),
    }
)


@given(answers=st.lists(st.lists(FOLLOWED, min_size=1, max_size=5), min_size=1, max_size=6))
def test_what_a_follower_appends_at_once_is_what_it_appends_under_the_lock(answers):
    with tempfile.TemporaryDirectory() as root:
        settings = {"segment_bytes": 700, "segment_ms": 50, "index_interval_bytes": 200, "cleanup_policy": "compact"}
        env = Env()
        one, two = (warm(Path(root), env, name=name, **settings) for name in ("one-0", "two-0"))
        for answer in answers:
            data, offset = bytearray(), one.log_end_offset
            for sent in answer:
                how = sent["how"]
                offset += {"gap": 3, "old": -1}.get(how, 0)
                rows = [Record(max(0, offset) + n, 1_000 + sent["time_ms"], None, bytes(sent["size"])) for n in (0, 1)]
                made = build(
                    rows,
                    producer=sent["producer"],
                    leader_epoch=int(how == "epoch"),
                    attributes=16 * (how == "transactional" and sent["producer"][0] >= 0),
                )
                if how == "damaged":
                    made[-1] ^= 1
                data += made[:-5] if how == "cut" else made
                offset += 2
            wanted = outcome(partial(one.append_as_follower, bytes(data)))
            done = outcome(partial(followed_at_once, two, bytes(data)))
            if done is None:
                done = outcome(partial(two.append_as_follower, bytes(data)))
            assert done == wanted
        assert files_of(one) == files_of(two)


def files_of(log):
    return {path.name: path.read_bytes() for path in log.directory.iterdir() if path.suffix in KINDS}


class Tight(OsFiles):
    """A disk with room for so many bytes of logs."""

    left_bytes = 1 << 30

    def write(self, path, position, data):
        room = len(data) if not str(path).endswith(".log") else min(len(data), self.left_bytes)
        super().write(path, position, bytes(data)[:room])
        if room < len(data):
            raise DiskFullError(f"{path}: full", path=str(path), reason="full")
        if str(path).endswith(".log"):
            self.left_bytes -= room


def test_where_a_disk_has_room_for_one_of_two_that_one_is_appended(tmp_path):
    files = Tight()
    log = warm(tmp_path, Env(files=files))
    first, second = batch(b"b"), batch(b"c")
    files.left_bytes = len(first) + 10
    done, refused = now(log, first, second)
    assert done.first_offset == 1
    assert isinstance(refused, DiskFullError)
    assert [value for _, value in contents(log)] == [b"a", b"b"]


class Dying(OsFiles):
    """A disk that says of a write that it failed, though all of it is there, and then cuts nothing."""

    is_dying = False

    def write(self, path, position, data):
        super().write(path, position, data)
        if self.is_dying:
            raise StorageError(f"{path}: no answer", path=str(path))

    def truncate(self, path, size):
        if self.is_dying:
            raise StorageError(f"{path}: no answer", path=str(path))
        super().truncate(path, size)


@pytest.mark.parametrize("count", [1, 2])
def test_of_batches_that_cannot_be_taken_back_none_is_to_be_tried_again(tmp_path, count):
    files = Dying()
    log = warm(tmp_path, Env(files=files))
    sent = [batch(value) for value in (b"b", b"c")[:count]]
    files.is_dying = True
    errors = now(log, *sent)
    files.is_dying = False
    assert [type(error) for error in errors] == [StorageError] * count
    assert append(log, batch(b"d")).first_offset == 1 + count
    assert [value for _, value in contents(log)] == [b"a", *[b"b", b"c"][:count], b"d"]


def outcome(append):
    try:
        return append()
    except PylogError as error:
        return type(error)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"index_interval_bytes": 200},
        {"index_interval_bytes": 1, "segment_index_bytes": 60},
        {"message_timestamp_type": "LogAppendTime"},
        {"segment_bytes": 500, "index_interval_bytes": 100},
    ],
)
def test_files_and_offsets_are_the_same_as_those_of_a_leader(tmp_path, settings):
    """Indexes, too, and where segments end; with producers that come in between."""
    env = Env()
    one, two = (warm(tmp_path, env, name=name, **settings) for name in ("one-0", "two-0"))
    for number in range(30):
        rows = [Record(n, 1000 * number + n, None, b"v") for n in range(1 + number % 3)]
        producer = (1, 0, sum(1 + n % 3 for n in range(20, number))) if number >= 20 else (-1, -1, -1)
        data = [build(rows, producer=producer) for _ in range(2)]
        done, expected = (
            at_once(one, data[0]),
            appended(two, data[1], leader_epoch=0),
        )
        assert done._replace(append_time_ms=0) == expected._replace(append_time_ms=0)
        assert one.files.view.tail[:4] == two.files.view.tail[:4]
    again = [build(rows, producer=producer) for _ in range(2)]
    done = at_once(one, again[0])
    assert done == appended(two, again[1], leader_epoch=0)
    assert done.is_duplicate
    told = [[state._replace(last_append_ms=0) for state in log.producers.states()] for log in (one, two)]
    assert told[0] == told[1]
    if "message_timestamp_type" in settings:
        return
    for base in one.files.view.bases:
        for path, other in zip(one.files.segment(base).paths, two.files.segment(base).paths, strict=True):
            assert env.files.read_all(path) == env.files.read_all(other)


def test_nothing_is_done_while_another_thread_holds_the_log(tmp_path):
    log, held, release = warm(tmp_path, Env()), threading.Event(), threading.Event()

    def hold():
        with log.lock():
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    try:
        assert at_once(log, batch(b"b")) is None
    finally:
        release.set()
        holder.join()
    assert at_once(log, batch(b"b")).first_offset == 1


@pytest.mark.parametrize("settings", [{"flush_messages": 10}, {"flush_ms": 0}])
def test_nothing_is_done_that_may_have_to_be_flushed(tmp_path, settings):
    log = warm(tmp_path, Env(), **settings)
    assert at_once(log, batch(b"b")) is None
    assert log.log_end_offset == 1


def test_nothing_is_done_in_a_leader_epoch_that_is_not_noted(tmp_path):
    log = warm(tmp_path, Env())
    assert at_once(log, batch(b"b"), leader_epoch=1) is None
    appended(log, batch(b"b"), leader_epoch=1)
    assert at_once(log, batch(b"c"), leader_epoch=1).first_offset == 2


def test_nothing_is_done_on_a_log_that_was_not_looked_at(tmp_path):
    assert at_once(make(tmp_path, Env()), batch(b"a"), leader_epoch=-1) is None


def test_what_may_not_be_appended_is_refused_and_the_next_one_is_taken(tmp_path):
    log = warm(tmp_path, Env(), max_message_bytes=100)
    broken = batch(b"b")
    broken[-1] ^= 1
    with pytest.raises(DamagedBatchError):
        at_once(log, broken)
    with pytest.raises(RecordTooLargeError):
        at_once(log, batch(bytes(200)))
    assert at_once(log, batch(b"b")).first_offset == 1


@pytest.mark.parametrize("room", [0, 30])
def test_after_a_failure_the_end_is_looked_for_first(tmp_path, room):
    env = Env(files=Full())
    log = warm(tmp_path, env)
    env.files.room = room
    with pytest.raises(DiskFullError):
        at_once(log, batch(b"b"))
    env.files.room = None
    assert at_once(log, batch(b"c")) is None
    assert append(log, batch(b"c")).first_offset == 1
    assert [value for _, value in contents(log)] == [b"a", b"c"]
    assert not list(log.verify())


def test_a_batch_is_taken_back_when_its_producers_snapshot_has_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "SNAPSHOT_BATCHES", 2)
    env = Env(files=NoSnapshots())
    log = warm(tmp_path, env)
    sent = [build([Record(n, 1, None, b"%d" % n)], producer=(1, 0, n)) for n in range(3)]
    appended(log, sent[0], leader_epoch=0)
    env.files.is_full = True
    with pytest.raises(DiskFullError):
        at_once(log, sent[1])
    assert log.log_end_offset == 2
    env.files.is_full = False
    assert append(log, sent[1]).first_offset == 2
    assert at_once(log, sent[2]).first_offset == 3
    assert [value for _, value in contents(log)] == [b"a", b"0", b"1", b"2"]


# ------------------------------------------------------------------------------------------------ of a follower


def led(root, env, count=30, **settings):
    """(a leader's log with small segments, what a follower gets of it answer by answer): with producers, and a gap."""
    leader = warm(root, env, name="led-0", segment_bytes=500, index_interval_bytes=100, **settings)
    for number in range(count):
        rows = [Record(n, 1000 * number + n, None, b"v") for n in range(1 + number % 3)]
        producer = (1, 0, sum(1 + n % 3 for n in range(10, number))) if number >= 10 else (-1, -1, -1)
        appended(leader, build(rows, producer=producer), leader_epoch=0)
    answers, offset = [], 0
    while offset < leader.log_end_offset:
        read = leader.read(offset, max_bytes=100 + 60 * (len(answers) % 4))
        answers.append(bytes(read.data))
        offset = read.next_offset
    return leader, answers


def test_a_follower_that_waits_for_nothing_has_the_same_files(tmp_path):
    env = Env()
    _, answers = led(tmp_path, env)
    del answers[5]  # compaction leaves gaps
    one, two = (make(tmp_path, env, name=n, segment_bytes=400, index_interval_bytes=100) for n in ("one-0", "two-0"))
    for log in (one, two):
        log.append_as_follower(answers[0])
    for answer in answers[1:]:
        assert followed_at_once(one, answer) == two.append_as_follower(answer)
        assert one.files.view.tail == two.files.view.tail
    assert contents(one) == contents(two)
    assert one.epochs.starts == two.epochs.starts
    told = [[state._replace(last_append_ms=0) for state in log.producers.states()] for log in (one, two)]
    assert told[0] == told[1]
    assert len(one.files.view.bases) > 2
    for base in one.files.view.bases:
        for path, other in zip(one.files.segment(base).paths, two.files.segment(base).paths, strict=True):
            assert env.files.read_all(path) == env.files.read_all(other)


def followed(root, env, **settings):
    """A follower's log, one batch long, whose end its owner knows; and the next batches."""
    _, answers = led(root, Env(), count=3)
    log = make(root, env, **settings)
    log.append_as_follower(answers[0])
    return log, answers[1:]


@pytest.mark.parametrize("settings", [{"flush_messages": 10}, {"flush_ms": 0}])
def test_a_follower_does_nothing_that_may_have_to_be_flushed(tmp_path, settings):
    log, answers = followed(tmp_path, Env(), **settings)
    end = log.log_end_offset
    assert followed_at_once(log, answers[0]) is None
    assert log.log_end_offset == end


def test_a_follower_does_nothing_while_the_log_is_held_or_was_not_looked_at(tmp_path):
    log, answers = followed(tmp_path, Env())
    held, release = threading.Event(), threading.Event()

    def hold():
        with log.lock():
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    try:
        assert followed_at_once(log, answers[0]) is None
    finally:
        release.set()
        holder.join()
    assert followed_at_once(log, answers[0]) is not None
    assert followed_at_once(make(tmp_path, Env(), name="new-0"), answers[0]) is None


def test_a_follower_waits_with_batches_of_a_leader_epoch_that_is_not_noted(tmp_path):
    log, _ = followed(tmp_path, Env())
    end = log.log_end_offset
    known, new = (
        bytes(build([Record(at, 1, None, b"x")], leader_epoch=epoch)) for at, epoch in ((end, 0), (end + 1, 1))
    )
    assert followed_at_once(log, known + new) is None
    assert log.log_end_offset == end
    log.append_as_follower(known + new)
    assert log.epochs.starts[-1] == (1, end + 1)


def test_a_follower_refuses_what_goes_back_or_is_damaged_and_takes_the_next(tmp_path):
    log, answers = followed(tmp_path, Env())
    broken = bytearray(answers[0])
    broken[-1] ^= 1
    with pytest.raises(DamagedBatchError):
        followed_at_once(log, broken)
    again = bytes(log.read(0, max_bytes=1).data)
    with pytest.raises(InvalidRecordError):
        followed_at_once(log, again)
    assert followed_at_once(log, answers[0]) is not None


@pytest.mark.parametrize("room", [0, 30])
def test_after_a_failure_a_follower_looks_for_the_end_first(tmp_path, room):
    env = Env(files=Full())
    log, answers = followed(tmp_path, env)
    env.files.room = room
    with pytest.raises(DiskFullError):
        followed_at_once(log, answers[0])
    env.files.room = None
    assert followed_at_once(log, answers[0]) is None
    log.append_as_follower(answers[0])
    assert not list(log.verify())


TURN = st.tuples(
    st.lists(st.tuples(st.sampled_from([7, 8, 9]), st.integers(0, 2)), max_size=4),  # who writes in a transaction
    st.lists(st.builds(Marker, st.sampled_from([7, 8, 9]), st.integers(0, 2), st.booleans(), st.integers(0, 2),
                       st.booleans()), max_size=5),
    st.sampled_from([None] * 4 + [0, 100]),  # the room that the first try finds
)  # fmt: skip


@given(turns=st.lists(TURN, min_size=1, max_size=5))
def test_markers_that_are_written_together_are_what_they_are_one_by_one(turns):
    """Outcomes, all bytes of the log and its indexes, what is known of producers; also where the first try fails."""
    with tempfile.TemporaryDirectory() as root:
        settings = {"segment_bytes": 400, "index_interval_bytes": 200}
        files = Full()
        one, two = (warm(Path(root), Env(files=files, clock=StillClock()), name=n, **settings) for n in ("a-0", "b-0"))
        for written, markers, room in turns:
            for producer in written:
                data = build([Record(0, 1_000, None, b"x")], producer=(*producer, -1), attributes=TRANSACTIONAL)
                singly = outcome(partial(appended, one, bytearray(data)))
                assert outcome(partial(appended, two, data)) == singly
            singly = [told(one.append_as_leader([marker])[0]) for marker in markers]
            if room is not None:
                files.room, end = room, two.log_end_offset
                failed = two.append_as_leader(markers, is_owner=True)
                files.room = None
                assert len(failed) == len(markers)
                assert two.log_end_offset == end
            together = two.append_as_leader(markers, is_owner=True)
            assert [told(found) for found in together] == singly
            states = [[state._replace(last_append_ms=0) for state in log.producers.states()] for log in (one, two)]
            assert states[0] == states[1]
            end = one.log_end_offset
            assert two.producers.aborted(0, end) == one.producers.aborted(0, end)
        assert files_of(one) == files_of(two)
        assert not list(two.verify())


def test_behind_markers_that_could_not_be_taken_back_the_owner_looks_again(tmp_path):
    files = Dying()
    log = warm(tmp_path, Env(files=files))
    appended(log, build([Record(0, 1_000, None, b"x")], producer=(7, 0, -1), attributes=TRANSACTIONAL))
    files.is_dying = True
    (failed,) = log.append_as_leader([Marker(7, 0, True, 0, is_above=False)], is_owner=True)
    assert isinstance(failed, StorageError)
    files.is_dying = False
    (again,) = log.append_as_leader([Marker(7, 0, True, 0, is_above=False)], is_owner=True)
    assert again.is_duplicate, "it was written the first time"
    assert (log.log_end_offset, log.producers.open_transactions()) == (3, ())
    assert not list(log.verify())


def told(found):
    return found if isinstance(found, AppendInfo) else type(found)
