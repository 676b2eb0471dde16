"""A moment is never taken for one of ListOffsets' codes."""

import pytest

from logstore.config import INT64_MAX
from replication.model.times import SpecialTime, TimeMs, from_wire, to_wire


@pytest.mark.parametrize("ms", [-1, -2, -3, -4, -5, -6, -7, -(10**18), -(10**30)])
def test_a_moment_before_1970_asks_for_the_first_record(ms):
    assert to_wire(TimeMs(ms)) == SpecialTime.EARLIEST.value


def test_a_moment_that_64_bits_do_not_hold_is_the_last_one_that_they_do():
    assert [to_wire(TimeMs(ms)) for ms in (0, 7, INT64_MAX, 10**30)] == [0, 7, INT64_MAX, INT64_MAX]


def test_places_go_there_and_back():
    assert all(from_wire(to_wire(place)) is place for place in SpecialTime)
    assert from_wire(0) == 0
    assert from_wire(-7) is None
    assert not any(place == place.value for place in SpecialTime)
