"""Whose transactions hold a partition, while questions to the coordinator and markers cross."""

import pytest

from logstore.records.marker import Marker
from replication.errors import ErrorCode
from replication.replica.leader.writers import Writers


def marker(epoch, *, is_above):
    return Marker(7, epoch, True, 0, is_above)


@pytest.mark.parametrize(
    ("asked", "ended", "is_void"),
    [
        (1, marker(2, is_above=True), True),  # it ends the transaction that was asked about
        (2, marker(2, is_above=True), False),  # it ends the one before, whose marker has this one's epoch
        (1, marker(1, is_above=False), True),
        (2, marker(1, is_above=False), False),
        (1, marker(5, is_above=False), True),
    ],
)
def test_a_marker_voids_what_was_asked_of_its_transaction_and_earlier_ones_only(asked, ended, is_void):
    writers, told = Writers(), []
    question, is_new = writers.question(7, asked)
    assert is_new
    question.wait(told.append)
    assert writers.question(7, asked) == (question, False)
    writers.end(ended)
    assert question.is_void == is_void
    writers.answered(7, asked, ErrorCode.NONE)
    assert told == [ErrorCode.NONE]
    assert writers.holds(7, asked)
    assert not writers.asks


@pytest.mark.parametrize(("held", "ended", "is_over"), [
    (1, marker(2, is_above=True), True),
    (2, marker(2, is_above=True), False),
    (2, marker(2, is_above=False), True),
])  # fmt: skip
def test_a_marker_ends_who_wrote_in_its_transaction(held, ended, is_over):
    writers = Writers()
    writers.add(7, held)
    writers.add(8, held)
    writers.end(ended)
    assert writers.holds(7, held) != is_over
    assert writers.holds(8, held), "of another producer"


def test_an_older_epoch_never_takes_the_place_of_a_newer_one():
    writers = Writers()
    writers.add(7, 2)
    writers.add(7, 1)
    assert writers.holds(7, 2)


def test_a_producer_that_is_refused_may_not_write_and_the_question_about_another_epoch_stays():
    writers, told = Writers(), []
    for epoch in (1, 2):
        question, _ = writers.question(7, epoch)
        question.wait(told.append)
    writers.answered(7, 1, ErrorCode.INVALID_TXN_STATE)
    writers.answered(7, 1, ErrorCode.NONE)  # nobody asks that any more
    assert told == [ErrorCode.INVALID_TXN_STATE]
    assert not writers.holds(7, 1)
    assert writers.question(7, 2) == (question, False)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_transaction_that_has_not_begun_here_begins_at_0(has_begun):
    """A leader that has just died may have had its first batch on the way, while its second comes here."""
    writers, told = Writers(), []
    question, _ = writers.question(7, 1)
    for sequence in (5, 0, 5):
        question.wait(told.append, sequence)
    assert question.comes_late
    writers.answered(7, 1, ErrorCode.NONE, has_begun=has_begun)
    late = ErrorCode.NONE if has_begun else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert told == [late, ErrorCode.NONE, ErrorCode.NONE]
    assert writers.holds(7, 1)


def test_nobody_writes_behind_a_batch_that_came_before_the_first_one():
    writers, told = Writers(), []
    question, _ = writers.question(7, 1)
    question.wait(told.append, 5)
    writers.answered(7, 1, ErrorCode.NONE, has_begun=False)
    assert told == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert not writers.holds(7, 1)
