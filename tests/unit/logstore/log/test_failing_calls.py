"""S9: any two calls of the disk fail in a change of the log and its undoing: it loses nothing and has no gap."""

import itertools
from contextlib import suppress

import pytest

from logstore.errors import InvalidRecordError, PylogError, StorageError
from tests.support.partition import SMALL, batch, contents, filled, make, rows
from tests.support.repeats import times

pytestmark = pytest.mark.parametrize("apart", range(0, 8, times(2, 1)))
NEVER = 1_000_000


@pytest.fixture
def failing(root, env, disk, apart, monkeypatch):
    """Yield new logs: of each, one call more goes well before one fails, and another one `apart` from it."""
    changes, left, failed = disk._changes, [NEVER], [0]

    def count(in_part=lambda _: None):
        left[0] -= 1
        if left[0] in (-1, -1 - apart):
            failed[0] += 1
            raise StorageError("Input/output error")
        return changes(in_part)

    def begin(calls):
        left[:], failed[:] = [calls], [0]

    monkeypatch.setattr(disk, "_changes", count)

    def logs(prepare=lambda log: None):
        for calls in itertools.count():
            log = make(root, env, name=f"u-{calls}", **SMALL)
            prepare(log)
            yield log, lambda calls=calls: begin(calls), lambda: left.__setitem__(0, NEVER)
            if not failed[0]:
                assert calls > 2
                return

    return logs


def copy(leader, follower, end=None):
    """Append what the leader has up to there, in steps, as a replica that owns its directory."""
    end = end or leader.log_end_offset
    while (start := follower.files.view.end) < end:
        data, following = bytearray(), start
        while len(data) < 500 and following < end:
            found = leader.read(following, max_bytes=1 << 20, upper=end)
            data += found.data
            following = found.next_offset
        try:
            follower.append_as_follower(data, end=start, is_owner=True)
        except InvalidRecordError:
            assert follower.files.view.end > start, "whole batches were kept"


def test_a_follower_goes_on_without_a_gap(root, env, failing):
    """It asks its leader from the end that it sees, which may be behind batches that are gone."""
    leader = filled(root, env, 30)
    for follower, begin, end in failing(lambda log: copy(leader, log, end=3)):
        begin()
        with suppress(StorageError):
            copy(leader, follower, end=17)
        end()
        copy(leader, follower, end=17)
        copy(leader, follower)
        assert contents(follower) == rows(30)


CHANGES = [("truncate_to", offset) for offset in (0, 4, 5, 16)]
CHANGES += [("advance_start", 4), ("advance_start", 16), ("start_anew", 20)]


@pytest.mark.parametrize(("change", "offset"), CHANGES)
def test_a_change_that_is_tried_again_is_done(root, env, failing, change, offset):
    leader = filled(root, env, 30)
    for log, begin, end in failing(lambda log: copy(leader, log, end=17)):
        begin()
        for _ in range(2):
            with suppress(StorageError):
                getattr(log, change)(offset)
        end()
        getattr(log, change)(offset)
        copy(leader, log)
        assert contents(log) == rows(30)[0 if change == "truncate_to" else offset :]
        assert list(log.verify()) == []


@pytest.mark.parametrize("is_owner", [False, True])
def test_what_a_leader_acknowledged_stays(failing, is_owner):
    for log, begin, end in failing():
        acked = {}

        def append(*batches, log=log, acked=acked):
            with suppress(PylogError):
                outcomes = log.append_as_leader(
                    [bytearray().join(map(batch, each)) for each in batches], is_owner=is_owner
                )
                done = [
                    (o.first_offset, each) for o, each in zip(outcomes, batches, strict=True) if hasattr(o, "bytes")
                ]
                acked.update((first + n, value) for first, values in done for n, value in enumerate(values))

        append([b"a"], [b"b"])
        begin()
        append(*([b"c%d" % n] for n in range(9)))
        append([b"d%d" % n for n in range(9)])
        end()
        append([b"e%d" % n for n in range(9)], [b"f"])
        found = contents(log)
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert acked.items() <= dict(found).items()
        assert b"f" in acked.values()
        assert list(log.verify()) == []
