"""The bytes of dead letters: what fits into a batch, and what a batch has."""

from bisect import bisect
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.records.batch import Record, build, records
from replication.broker.share import letters as module
from replication.broker.share.letters import Letter, batch_of, copied, cut, fitting, place, ranges_of
from replication.broker.share.machine.events import REJECTED, SendLetters

PARTS = st.none() | st.binary(max_size=3000)
FOUND = st.none() | st.builds(Record, st.just(0), st.just(0), PARTS, PARTS)


def letters_about(found):
    return [Letter("g", "jobs", 7, number, 2, REJECTED, each) for number, each in enumerate(found)]


@given(st.lists(FOUND, min_size=1, max_size=20), st.integers(0, 10_000))
def test_a_batch_is_not_too_large_unless_one_letter_is(found, bytes_max):
    letters = letters_about(found)
    count = fitting(letters, bytes_max)
    assert 1 <= count <= len(letters)
    batch = batch_of(letters[:count], 5)
    assert count == 1 or len(batch) <= bytes_max
    more = letters[: count + 1]
    assert more == letters[:count] or len(batch_of(more, 5)) > bytes_max - 100 * len(more), "no batch is nearly empty"
    (first, *_) = rows = list(records(batch))
    assert [row.headers for row in rows] == [letter.headers for letter in letters[:count]]
    assert (first.timestamp, first.key) == (5, found[0] and found[0].key)


def test_partitions_of_letters_are_those_of_their_records_modulo_the_number():
    assert [place(partition, 3) for partition in range(5)] == [0, 1, 2, 0, 1]


GAPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=8)


def given_up(gaps):
    found, end = [], 0
    for gap, count in gaps:
        found.append(SendLetters(end + gap, end + gap + count - 1, count, REJECTED))
        end += gap + count
    return found


def offsets_of(some):
    return [(offset, *each[2:]) for each in some for offset in range(each.first, each.last + 1)]


@given(GAPS, st.integers(1, 40), st.integers(0, 200))
def test_a_cut_has_so_many_records_before_the_end_and_leaves_the_others(gaps, count, end):
    every = offsets_of(given_up(gaps))
    now, left = map(offsets_of, cut(given_up(gaps), count, end))
    assert now + left == every
    assert len(now) == min(count, sum(offset < end for offset, *_ in every))
    ranges = ranges_of([Letter("g", "jobs", 7, *each) for each in now])
    assert [offset for first, last in ranges for offset in range(first, last + 1)] == [offset for offset, *_ in now]
    assert all(one.last + 1 < other.first for one, other in pairwise(ranges))


@given(
    GAPS,
    st.lists(st.integers(1, 20), min_size=1, max_size=15),
    st.sampled_from([1, 500, 10**9]),
    st.sets(st.integers(0, 14)),
)
def test_each_record_is_copied_if_it_is_in_the_log(gaps, batches, bytes_max, damaged):
    """`batches`: the steps between their first offsets; each third offset was compacted away; `damaged` are some."""
    log, base, starts, lost, errors = bytearray(), 0, [0, *accumulate(batches)], set(), []
    for number, step in enumerate(batches):
        rows = [Record(n, 0, None, b"v%d" % n, (("h", b"held for nobody"),)) for n in range(base, base + step) if n % 3]
        log += build(rows) if rows else b""
        if rows and number in damaged:
            log[-1] ^= 1
            lost |= {row.offset for row in rows}
        base += step
    left, found, reads = given_up(gaps), {}, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COPIED_BYTES", bytes_max)
        while left:
            end, some = copied(log, left, errors.append)
            assert end > left[0].first, "goes on"
            now, left = cut(left, 10**9, end)
            assert some.keys() <= {offset for offset, *_ in offsets_of(now)}
            assert bytes_max > 1 or len({bisect(starts, offset) for offset in some}) <= 1, "no batch more"
            found.update(some)
            reads += 1
            if end >= base:
                break
    wanted = {offset for offset, *_ in offsets_of(given_up(gaps))}
    assert {n: row.value for n, row in found.items()} == {n: b"v%d" % n for n in wanted - lost if n < base and n % 3}
    assert bool(errors) >= bool(lost & wanted)
    assert not any(row.headers for row in found.values())
    assert bytes_max < 10**9 or reads <= 2, "no batch is decoded for each range anew"
