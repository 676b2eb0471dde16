"""Where resets put offsets, and what they are asked by."""

import pytest

from logstore.errors import InvalidRequestError
from replication.model.cluster import TopicPartition
from replication.tools.offset_resets import Place, Reset, csv_of, duration_of, new_offset, offsets_of, time_of


@pytest.mark.parametrize(
    ("reset", "committed", "at_time", "wanted"),
    [
        (Reset(Place.EARLIEST), 50, None, 10),
        (Reset(Place.LATEST), 50, None, 100),
        (Reset(Place.CURRENT), 50, None, 50),
        (Reset(Place.CURRENT), None, None, 100),
        (Reset(Place.CURRENT), 3, None, 10),  # the records are gone
        (Reset(Place.OFFSET, 40), None, None, 40),
        (Reset(Place.OFFSET, 4), None, None, 10),
        (Reset(Place.OFFSET, 400), None, None, 100),
        (Reset(Place.SHIFT, -20), 50, None, 30),
        (Reset(Place.SHIFT, 20), 50, None, 70),
        (Reset(Place.SHIFT, -60), 50, None, 10),
        (Reset(Place.TIME, 123), 50, 60, 60),
        (Reset(Place.TIME, 123), 50, -1, 100),
    ],
)
def test_a_new_offset_is_one_that_the_log_has(reset, committed, at_time, wanted):
    assert new_offset(reset, committed, 10, 100, at_time) == wanted


def test_what_was_never_committed_cannot_be_shifted():
    with pytest.raises(InvalidRequestError, match="cannot be shifted"):
        new_offset(Reset(Place.SHIFT, 1), None, 10, 100, None)


def test_times_are_of_utc_unless_they_name_a_zone():
    assert time_of("1970-01-02T00:00:00.001") == 86_400_001
    assert time_of("1970-01-02T01:00:00+01:00") == 86_400_000
    with pytest.raises(InvalidRequestError, match="no time such as"):
        time_of("yesterday")


def test_durations_are_those_of_iso_8601():
    assert [duration_of(text) for text in ("P7D", "PT1H30M", "P1DT0.5S", "P2W")] == [
        7 * 86_400_000, 5_400_000, 86_400_500, 14 * 86_400_000
    ]  # fmt: skip
    assert duration_of(f"P{'9' * 400}D") > 10**400
    for text in ("7D", "P", "PT", "P1DT", "P-1D", "P1H"):
        with pytest.raises(InvalidRequestError, match="no duration such as"):
            duration_of(text)


def test_a_plan_goes_through_a_file():
    plan = [{"topic": "c", "partition": 1, "new_offset": 0}]
    assert offsets_of(csv_of(plan).splitlines()) == {TopicPartition("c", 1): 0}
    for lines in ([], ["c,1"], ["c,1,-2"], ["c,one,2"]):
        with pytest.raises(InvalidRequestError, match="TOPIC,PARTITION,OFFSET"):
            offsets_of(lines)
