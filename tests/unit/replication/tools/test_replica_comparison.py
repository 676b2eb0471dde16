"""Replicas are the same, or the first offset at which one differs is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.records.batch import Record, build, header_at, seal, write_header
from replication.tools.replica_comparison import Compared, Finding, compare


def batch(offset, *values, epoch=0):
    """One batch; a value of None is a record that compaction has removed."""
    rows = [Record(offset + n, 1_000 + n, b"k", value) for n, value in enumerate(values) if value is not None]
    made = build(rows, leader_epoch=epoch)
    header = header_at(made)._replace(base_offset=offset, last_offset_delta=len(values) - 1)
    write_header(made, 0, header)
    seal(made, 0, header.size_bytes)
    return bytes(made)


A, B, C = batch(0, b"a", b"aa"), batch(2, b"b"), batch(3, b"c")


def damaged(data):
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def compared(*chunks, offset=0, end=100, is_compacted=False):
    return compare(offset, end, dict(enumerate(chunks, 1)), is_compacted=is_compacted)


def test_the_same_is_the_same_as_far_as_all_have_it_and_below_the_end():
    assert compared(A + B + C, A + B + C) == Compared(4)
    assert compared(A + B + C, A + B, A + B + C[:40]) == Compared(3)
    assert compared(A + B + C, A + B + C, end=3) == Compared(3)
    assert compared(A, A, offset=1) == Compared(2)
    assert compared(C, C, end=2) == Compared(2)


def test_damage_is_told_of_whose_it_is_even_if_all_have_it():
    assert [each[:2] for each in compared(A + B, A + damaged(B)).findings] == [(2, 2)]
    assert [each[:2] for each in compared(damaged(A) + B, A + B).findings] == [(1, 0)]
    found = compared(A + damaged(B), A + damaged(B))
    assert [each[:2] for each in found.findings] == [(1, 2), (2, 2)]
    assert "CRC-32C" in found.findings[0].reason


def test_the_others_are_compared_on():
    found = compared(A + B + C, A + batch(2, b"x") + C, A + B + batch(3, b"y"))
    assert [each[:2] for each in found.findings] == [(2, 2), (3, 3)]
    assert found.next_offset == 4


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (batch(2, b"x"), "the batch of offset 2 has CRC"),
        (batch(2, b"b", epoch=1), "the batch of offset 2 has leader_epoch 1, 0 on broker 1"),
        (batch(3, b"b"), "the batch of offset 3 has base_offset 3, 2 on broker 1"),
        (batch(2, b"b", b"b"), "the batch of offset 2 has length"),
        (batch(100, b"b"), "no batch here, the batch of offset 2 on broker 1"),
    ],
)
def test_how_a_batch_differs_is_told(theirs, reason):
    (found,) = compared(A + B + C, A + theirs + C).findings
    assert found[:2] == (2, 2)
    assert found.reason.startswith(reason)


def test_what_compaction_removed_is_no_difference_and_what_it_left_is_compared():
    holes = batch(0, None, b"aa") + C
    assert compared(A + B + C, holes, is_compacted=True) == Compared(4)
    assert compared(C, A + B + C, is_compacted=True) == Compared(4)
    assert [each[:2] for each in compared(A + B + C, holes).findings] == [(2, 0)]
    other = batch(0, None, b"aa") + batch(3, b"y")
    assert [each[:2] for each in compared(A + B + C, other, is_compacted=True).findings] == [(2, 3)]
    assert compared(A + B, damaged(batch(0, None, b"aa")) + B, is_compacted=True).findings[0][:2] == (2, 0)


def test_an_answer_without_a_whole_batch_is_told():
    assert compared(A, A[:50]) == Compared(2, (Finding(2, 0, "no whole batch"),))


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=8), st.data())
def test_one_flipped_bit_is_found_at_its_batch(values, data):
    batches = [batch(n, value) for n, value in enumerate(values)]
    whole = b"".join(batches)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = bytearray(whole)
    other[at] ^= 1 << data.draw(st.integers(0, 7))
    number = next(n for n in range(len(values)) if at < sum(map(len, batches[: n + 1])))
    found = compared(whole, bytes(other), end=len(values))
    told = [Finding(each.broker, each.offset, "") for each in found.findings]
    # A batch that goes beyond the others' end is found when the next answer begins there.
    assert told == [Finding(2, number, "")] or (number and found == Compared(number))
