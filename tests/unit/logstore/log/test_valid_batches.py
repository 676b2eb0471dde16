"""The one look that finds most batches good agrees with the checks that say what is wrong."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import DamagedBatchError, InvalidRecordError, PylogError, RecordTooLargeError
from logstore.log import validation
from logstore.log.validation import limits_of, valid_batches
from logstore.records.batch import BatchHeader, Codec, Record, build, header_at, seal, write_header

NOW_MS = 1_700_000_000_000
GOOD = bytes(build([Record(n, NOW_MS, b"k", b"v") for n in range(3)]))
CONFIG = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
LIMITS = limits_of(CONFIG, NOW_MS)
FIELDS = [name for name in BatchHeader._fields if name not in ("crc", "length")]


def found_in(data, limits):
    try:
        return valid_batches(data, limits)
    except PylogError as error:
        return type(error), str(error)


@pytest.mark.parametrize("limits", [LIMITS, None], ids=["of a writer", "of a leader"])
@given(changes=st.dictionaries(st.sampled_from(FIELDS), st.integers(-3, 20)), by_ms=st.integers(-2000, 2000))
@example(changes={}, by_ms=0)
def test_what_one_look_takes_is_what_the_checks_take(limits, changes, by_ms):
    data = bytearray(GOOD)
    times = {"base_timestamp": NOW_MS + by_ms, "max_timestamp": NOW_MS + by_ms}
    try:
        write_header(data, 0, header_at(GOOD)._replace(**times, **{k: v for k, v in changes.items() if k not in times}))
    except Exception:  # noqa: BLE001  a value that the field cannot hold
        return
    at_once = found_in(data, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "USUAL_ATTRIBUTES", ())  # no batch is usual
        assert at_once == found_in(data, limits)


def test_most_batches_need_one_look(monkeypatch):
    monkeypatch.setattr(validation, "check_written", None)
    monkeypatch.setattr(validation, "header_at", None)
    for codec in Codec:
        data = bytearray(GOOD)
        data[21:23] = int(codec).to_bytes(2, "big")
        seal(data, 0, len(data))
        assert valid_batches(data, LIMITS) == [header_at(data)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (GOOD[:60], DamagedBatchError),
        (GOOD[:-1], DamagedBatchError),
        (GOOD + b"\0", DamagedBatchError),
        (GOOD[:-1] + b"\7", DamagedBatchError),
        (GOOD + bytes(61), InvalidRecordError),
    ],
)
@pytest.mark.parametrize("limits", [LIMITS, None], ids=["of a writer", "of a leader"])
def test_what_is_not_whole_or_damaged_is_refused(limits, data, error):
    with pytest.raises(error, match="nothing was appended"):
        valid_batches(bytearray(data), limits)


def test_batches_one_behind_the_other_are_found():
    assert valid_batches(GOOD + GOOD, LIMITS) == [header_at(GOOD)] * 2
    assert valid_batches(b"", LIMITS) == []


def test_a_larger_batch_than_the_topic_takes_is_refused_unless_a_leader_has_it():
    limits = limits_of(LogConfig(max_message_bytes=len(GOOD) - 1), NOW_MS)
    with pytest.raises(RecordTooLargeError):
        valid_batches(bytearray(GOOD), limits)
    assert len(valid_batches(bytearray(GOOD), None)) == 1
