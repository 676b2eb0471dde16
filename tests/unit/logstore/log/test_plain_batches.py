"""The one look that most batches need says the same as the checks that explain what is wrong."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import PylogError
from logstore.log.validation import plain_batch, valid_batches
from logstore.records.batch import BatchHeader, Codec, Record, build, header_at, seal, write_header
from logstore.records.plain import placed

NOW_MS = 1_700_000_000_000
GOOD = bytes(build([Record(n, NOW_MS, b"k", b"v") for n in range(3)]))
CONFIG = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
FIELDS = [name for name in BatchHeader._fields if name not in ("crc", "size_bytes")]


def explained(data):
    """What the careful check finds: a single batch, or None if it refuses or finds more than one."""
    try:
        found = valid_batches(data, CONFIG, dense=True, now_ms=NOW_MS)
    except PylogError:
        return None
    return found[0][1] if len(found) == 1 else None


@given(changes=st.dictionaries(st.sampled_from(FIELDS), st.integers(-3, 20)), by_ms=st.integers(-2000, 2000))
@example(changes={}, by_ms=0)
def test_what_one_look_takes_is_what_the_checks_take(changes, by_ms):
    data = bytearray(GOOD)
    times = {"base_timestamp": NOW_MS + by_ms, "max_timestamp": NOW_MS + by_ms}
    try:
        write_header(data, 0, header_at(GOOD)._replace(**times, **{k: v for k, v in changes.items() if k not in times}))
    except Exception:  # noqa: BLE001  a value that the field cannot hold
        return
    found, wanted = plain_batch(data, CONFIG, NOW_MS), explained(data)
    if found is not None:
        assert placed(found, found[0], found[2]) == wanted
    elif wanted is not None:  # good, but not plain: the transactional ones, and what says its time in another way
        assert wanted.attributes & ~7


@pytest.mark.parametrize("data", [b"", GOOD[:60], GOOD[:-1], GOOD + b"\0", GOOD + GOOD, GOOD[:-1] + b"\7"])
def test_what_is_not_exactly_one_good_batch_is_left_to_the_checks(data):
    assert plain_batch(bytearray(data), CONFIG, NOW_MS) is None


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_plain_and_no_other(codec):
    data = bytearray(GOOD)
    for attributes, is_plain in ((codec, True), (codec | 0x10, False), (codec | 0x20, False), (5, False)):
        data[21:23] = int(attributes).to_bytes(2, "big")
        seal(data, 0, len(data))
        assert (plain_batch(data, CONFIG, NOW_MS) is not None) is is_plain


def test_a_larger_batch_than_the_topic_takes_is_left_to_the_checks():
    assert plain_batch(bytearray(GOOD), LogConfig(max_message_bytes=len(GOOD) - 1), NOW_MS) is None
