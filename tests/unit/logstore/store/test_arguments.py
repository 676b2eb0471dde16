"""Odd arguments: a whole number of any type is one, all else is refused with its name."""

from __future__ import annotations

import numpy as np
import pytest

import logstore
from logstore import InvalidRequestError, UnknownPartitionError
from tests.unit.logstore.store.conftest import rows


@pytest.fixture
def filled(store: logstore.LogStore) -> logstore.LogStore:
    store.create_topic("t", partitions=2)
    store.append("t", rows(["a", "b", "c"], partition=[1, 1, 1], timestamp=[10, 20, 30]))
    return store


def test_numpy_numbers_are_numbers(filled: logstore.LogStore) -> None:
    one = np.int64(1)
    assert filled.read("t", partition=one, start=one, end=np.int32(2)).read_all().num_rows == 1  # type: ignore[arg-type]
    assert filled.offsets_for_times("t", np.int64(15))[1] == (1, 20)  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in filled.tail("t", start=one, timeout_ms=0)) == 2  # type: ignore[arg-type]
    assert filled.create_topic("u", partitions=np.int64(3)) == filled.topic("u")  # type: ignore[arg-type]
    assert filled.alter_topic("u", partitions=np.int64(4)) == filled.topic("u")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [True, 1.0, "1"])
def test_what_is_not_a_whole_number_is_refused(filled: logstore.LogStore, number: object) -> None:
    for call in (
        lambda: filled.read("t", partition=number),  # type: ignore[arg-type]
        lambda: filled.read("t", partition=0, start=number),  # type: ignore[arg-type]
        lambda: filled.create_topic("u", partitions=number),  # type: ignore[arg-type]
        lambda: filled.alter_topic("t", partitions=number),  # type: ignore[arg-type]
        lambda: filled.offsets_for_times("t", number),  # type: ignore[arg-type]
        lambda: filled.tail("t", start=number),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequestError, match=r"must be a whole number|start='1'|start=1\.0"):
            call()


def test_a_range_must_not_run_backwards(filled: logstore.LogStore) -> None:
    with pytest.raises(InvalidRequestError, match="start=2 is behind end=1"):
        filled.read("t", partition=1, start=2, end=1)


def test_a_start_for_a_partition_that_is_not_there_is_a_mistake(filled: logstore.LogStore) -> None:
    with pytest.raises(UnknownPartitionError, match="no partition 7"):
        filled.tail("t", start={7: 0})


def test_flushing_a_topic_that_is_not_there_is_a_mistake(filled: logstore.LogStore) -> None:
    with pytest.raises(logstore.UnknownTopicError):
        filled.flush("tt")


def test_one_damaged_partition_does_not_keep_one_from_following_another(filled: logstore.LogStore) -> None:
    (filled.path / "t-0").rename(filled.path / "elsewhere")
    filled = logstore.open(filled.path, mode="r")
    assert sum(b.num_rows for b in filled.tail("t", partitions=[1], start="earliest", timeout_ms=0)) == 3


def test_names_are_checked_before_files_are_looked_for(store: logstore.LogStore) -> None:
    info = store.create_topic("t")
    store.delete_topic("t")
    with pytest.raises(logstore.InvalidTopicError):
        store.create_topic(f".deleted/{info.topic_id}", if_not_exists=True)
