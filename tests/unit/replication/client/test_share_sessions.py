"""The machine of a share session: epochs, and laws of a session with a broker that counts as Kafka does."""

import random

import pytest

from replication.client.share_sessions import (
    CLOSING,
    Answered,
    Asked,
    Lost,
    SharePartition,
    ShareSession,
    acknowledgement_of,
    closing_of,
    fetch_of,
    step,
)
from replication.errors import NONE, ErrorCode
from tests.support.repeats import times


def partitions(*numbers):
    return frozenset(SharePartition("id", number) for number in numbers)


def test_a_session_names_all_partitions_first_and_then_those_that_come_and_go():
    session = ShareSession()
    first = fetch_of(session, partitions(1, 2))
    assert first == Asked(0, partitions(1, 2), partitions())
    session = step(session, Answered(first, NONE))
    assert fetch_of(session, partitions(1, 2)) == Asked(1)
    second = fetch_of(session, partitions(2, 3))
    assert second == Asked(1, partitions(3), partitions(1))
    session = step(session, Answered(second, NONE))
    assert session == ShareSession(0, 2, partitions(2, 3))
    session = step(session, Answered(acknowledgement_of(session), NONE))
    assert session == ShareSession(0, 3, partitions(2, 3))


def test_epochs_begin_again_with_1():
    session = ShareSession(0, 2**31 - 1, partitions(1))
    assert step(session, Answered(fetch_of(session, partitions(1)), NONE)).epoch == 1


@pytest.mark.parametrize(
    "event",
    [
        Lost(),
        Answered(Asked(5), ErrorCode.SHARE_SESSION_NOT_FOUND),
        Answered(Asked(5), ErrorCode.INVALID_SHARE_SESSION_EPOCH),
        Answered(Asked(0), ErrorCode.SHARE_SESSION_LIMIT_REACHED),
        Answered(Asked(CLOSING), NONE),
    ],
)
def test_a_refusal_a_loss_or_its_close_ends_a_session(event):
    assert step(ShareSession(3, 5, partitions(1)), event) == ShareSession(4)


def test_only_an_open_session_acknowledges_or_is_closed():
    for ask in (acknowledgement_of, closing_of):
        with pytest.raises(AssertionError):
            ask(ShareSession())
    assert closing_of(ShareSession(0, 4)) == Asked(-1)


class Broker:
    """The session as Kafka keeps it."""

    def __init__(self):
        self.next, self.partitions = None, set()

    def answer(self, asked):
        if asked.epoch == 0:
            self.next, self.partitions = 1, set(asked.added)
        elif self.next is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif asked.epoch == CLOSING:
            self.next = None
        elif asked.epoch != self.next:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            self.next += 1
            self.partitions = (self.partitions | asked.added) - asked.forgotten
        return NONE


@pytest.mark.parametrize("seed", range(times(20, 200)))
def test_after_a_good_answer_both_sides_have_the_same_partitions_whatever_is_lost(seed):
    chance, broker, session = random.Random(seed), Broker(), ShareSession()
    refused = 0
    for _ in range(60):
        wanted = partitions(*chance.sample(range(5), chance.randrange(1, 5)))
        ways = [fetch_of(session, wanted)]
        if session.is_open:
            ways += [acknowledgement_of(session), closing_of(session)]
        asked, fate = chance.choice(ways), chance.random()
        if fate < 0.1:  # lost on its way there
            session = step(session, Lost())
            continue
        if fate < 0.2:  # the broker was started again
            broker = Broker()
        code = broker.answer(asked)
        number = session.number
        session = step(session, Lost() if fate > 0.9 else Answered(asked, code))
        refused = 0 if code is NONE else refused + 1
        assert refused <= 1  # the next request opens a session
        if session.is_open:
            assert (session.epoch, session.told) == (broker.next, broker.partitions)
        assert session.number == number + (not session.is_open or code is not NONE)
