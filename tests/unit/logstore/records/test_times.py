"""Times that callers give."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from logstore.errors import InvalidRequestError
from logstore.records.times import length_ms, milliseconds, of_text

WHEN = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
MS = 1_767_323_045_006


def test_a_moment_is_the_same_in_every_zone():
    assert milliseconds(WHEN, "t") == milliseconds(WHEN.astimezone(timezone(timedelta(hours=-7))), "t") == MS
    assert milliseconds(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "t") == -1000


def test_between_two_milliseconds_the_later_one_counts():
    assert milliseconds(WHEN + timedelta(microseconds=1), "t") == MS + 1
    assert milliseconds(WHEN + timedelta(microseconds=-1), "t") == MS


def test_a_datetime_without_a_zone_is_refused_with_a_remedy():
    with pytest.raises(InvalidRequestError, match=r"^start=2026-01-02T03:04:05: a datetime needs a time zone: .*UTC"):
        milliseconds(datetime(2026, 1, 2, 3, 4, 5), "start")  # noqa: DTZ001


def test_a_text_is_a_number_or_a_time_with_a_zone():
    for text in (str(MS), str(WHEN), WHEN.isoformat(), "2026-01-02T03:04:05.006Z", "2026-01-02 04:04:05.006+01:00"):
        assert of_text(text) == MS, text
    for text in ("2026-01-02T03:04:05", "2026-01-02", "soon", "", "-5"):
        assert of_text(text) is None, text


def test_a_length_of_time_has_a_unit_or_is_in_milliseconds():
    lengths = {
        "7": 7,
        "0": 0,
        "500ms": 500,
        "30 s": 30_000,
        "2m": 120_000,
        "2min": 120_000,
        "1H": 3_600_000,
        " 1d ": 86_400_000,
    }
    assert {text: length_ms(text) for text in lengths} == lengths
    for text in ("", "s", "-5s", "1.5h", "5 weeks", "soon"):
        assert length_ms(text) is None, text
