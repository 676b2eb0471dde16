"""What is remembered of commits changes nothing that is read in later ones."""

import itertools
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from logstore.env import Clock
from replication.broker.handlers import small_commits
from replication.broker.handlers.small_commits import SmallCommitHandler
from replication.errors import ErrorCode
from replication.protocol import apis
from replication.protocol.apis import SERVED, ApiKey

NAMES = st.sampled_from(["", "a", "b", "aa", "é", "x" * 30])
COMMITS = st.tuples(
    st.integers(SERVED[ApiKey.OFFSET_COMMIT].first, SERVED[ApiKey.OFFSET_COMMIT].last),
    NAMES,
    st.sampled_from([-1, 4]),
    NAMES,
    st.sampled_from([-1, 0, 2**40]),
    st.sampled_from(["t", "u", "gone"]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 256, 2**62]),
    st.sampled_from([-1, 0, 3, 2**30]),
    st.sampled_from([None, "", "", "", "a", "\0\0", "\1\0\0\0", "\0" * 14, "é"]),
    st.sampled_from([None, None, None, "static"]),
)
TOPICS = {name: SimpleNamespace(partitions={0: None, 1: None}) for name in ("t", "u")}


def frame_of(correlation_id, commit):
    version, group, generation, member, retention, topic, partition, offset, epoch, text, instance = commit
    row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": epoch,
           "committed_metadata": text}  # fmt: skip
    body = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
            "group_instance_id": instance if version >= 7 else None,
            "retention_time": retention, "topics": [{"name": topic, "partitions": [row]}]}  # fmt: skip
    return b"".join(apis.encode_request(ApiKey.OFFSET_COMMIT, version, correlation_id, "me", body))[4:]


def handler():
    return SmallCommitHandler(SimpleNamespace(topic=TOPICS.get), None, Clock())


def read_one(by, frame):
    return by._read_one(frame, 1000)


def known(by):
    return len(by._known)


def read(by, frame):
    found = read_one(by, frame)
    return found and (*found[:2], found[2](ErrorCode.NONE), found[3])


PLAIN = ("g", -1, "", -1, "t", 0, 1, -1, "", None)


@example(commits=[(version, *PLAIN) for version in range(2, 10)], flips=[0])
@example(commits=[(version, *PLAIN) for version in range(2, 10)], flips=[1])
@given(commits=st.lists(COMMITS, min_size=2, max_size=12), flips=st.lists(st.integers(0, 255), max_size=4))
def test_a_handler_that_has_read_others_reads_a_commit_as_a_new_one(commits, flips):
    used, number = handler(), itertools.count(7)
    for commit in (*commits, *commits):
        good = frame_of(next(number), commit)
        damaged = bytearray(good)
        for flip in flips:  # where most of the lengths are, and the end
            damaged[-1 - flip % len(damaged)] ^= 1 + flip % 5
        for frame in (bytearray(good), damaged):
            assert read(used, frame) == read(handler(), bytearray(frame))


def test_what_comes_again_is_remembered_and_no_more_than_so_much(monkeypatch):
    monkeypatch.setattr(small_commits, "REMEMBERED", 3)
    used = handler()
    for n in range(10):
        for version in (2, 6, 8):
            frame = frame_of(n, (version, "g", -1, "", -1, "t", 0, n, 5, "", None))
            _, correlation_id, _, (*_, offsets) = read_one(used, bytearray(frame))
            assert (correlation_id, [new[:2] for new in offsets.values()]) == (n, [(n, 5 if version > 5 else -1)])
        assert known(used) == 3
    read_one(used, bytearray(frame_of(1, (2, "h", -1, "", -1, "t", 0, 1, 5, "", None))))
    assert known(used) == 1
    read_one(used, bytearray(frame_of(1, (2, "h" * 600, -1, "", -1, "t", 0, 1, 5, "", None))))
    assert known(used) == 1
