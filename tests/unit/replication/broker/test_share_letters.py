"""The bytes of dead letters: what fits into a batch, and what a batch has."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.records.batch import Record, records
from replication.broker.share.letters import Letter, batch_of, fitting, place
from replication.broker.share.machine.events import REJECTED

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
