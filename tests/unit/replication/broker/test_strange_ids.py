"""The kernel and Python find the same records without a registered id."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import DamagedBatchError, InvalidRecordError
from logstore.records.batch import HEADER_BYTES, Record, build
from logstore.records.compression import Codec
from logstore.schemas.strategies import Demand
from replication.replica.leader import guard
from replication.replica.leader.strange_ids import ROWS_MAX, StrangeIdsError, strange_slowly
from tests.support.inside import loaded_kernels

CONFIG = LogConfig()
MIB = 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    guard.load()


def framed(schema_id, data=b""):
    return b"\0" + schema_id.to_bytes(4, "big", signed=True) + data


FIELDS = st.one_of(
    st.none(),
    st.binary(max_size=7),
    st.builds(framed, st.sampled_from([-1, -(2**31), 0, 1, 2, 3, 7, 2**31 - 1]), st.binary(max_size=200)),
)


def rows_found(check):
    try:
        check()
    except StrangeIdsError as error:
        return error.rows, str(error)
    return (), ""


@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=30),
    ids=st.sets(st.sampled_from([0, 1, 2, 3, 2**31 - 1])),
    part=st.sampled_from(["key", "value"]),
    codec=st.sampled_from(Codec),
)
def test_the_kernel_finds_what_python_finds(rows, ids, part, codec):
    demand = Demand(part, f"orders-{part}", array("q", sorted(ids)))
    data = build([Record(n, 1_000, key, value) for n, (key, value) in enumerate(rows)], codec=codec)
    slow = strange_slowly(data, demand, limit_bytes=MIB)
    rows_by_kernel, said = rows_found(lambda: guard.check(bytearray(data), CONFIG, 1_000, (demand,)))
    assert rows_by_kernel == tuple(row for row, _ in slow)
    if slow:
        assert said.endswith(demand.reason(slow[0][1]))
    if codec is Codec.NONE:
        assert guard.bearing([bytearray(data), bytearray(data)], (demand,)) == (0 if slow else 2)


@pytest.mark.parametrize("codec", Codec)
def test_an_error_names_some_of_very_many_records(codec):
    demand = Demand("value", "orders-value", array("q", [1]))
    data = build([Record(n, 1_000, None, framed(2)) for n in range(3 * ROWS_MAX)], codec=codec)
    with pytest.raises(StrangeIdsError, match=f"record 0 of the batch \\(and so {ROWS_MAX - 1} more\\)") as found:
        guard.check(bytearray(data), CONFIG, 1_000, (demand,))
    assert found.value.rows == tuple(range(ROWS_MAX))
    assert found.value.may_be_news
    good = build([Record(n, 1_000, None, framed(1)) for n in range(3 * ROWS_MAX)], codec=codec)
    guard.check(bytearray(good), CONFIG, 1_000, (demand,))


def test_only_ids_that_a_registry_hands_out_may_be_news():
    demand = Demand("value", "orders-value", array("q", []))
    for value in (framed(-5), b"text", b"", b"\0\0"):
        with pytest.raises(StrangeIdsError) as found:
            guard.check(build([Record(0, 1_000, None, framed(7)), Record(1, 1_000, None, value)]), CONFIG, 1, (demand,))
        assert not found.value.may_be_news


def test_damage_on_the_way_is_another_error_and_so_is_what_explodes():
    demand = Demand("value", "orders-value", array("q", [1]))
    data = build([Record(0, 1_000, None, framed(1, b"abc"))])
    data[data.index(framed(1)) + 4] = 9
    with pytest.raises(DamagedBatchError):
        guard.check(data, CONFIG, 1_000, (demand,))
    bomb = build([Record(0, 1_000, None, framed(1, bytes(2 * guard.EXPANDED_BYTES_MAX)))], codec=Codec.ZSTD)
    with pytest.raises(InvalidRecordError, match="nothing was appended"):
        guard.check(bomb, CONFIG, 1_000, (demand,))


def test_a_batch_of_100_mb_is_looked_through():
    demand = Demand("value", "orders-value", array("q", [1]))
    values = [framed(1, bytes(MIB))] * 100
    data = build([Record(n, 1_000, None, value) for n, value in enumerate([*values, framed(2)])])
    assert loaded_kernels().strange_ids is not None
    assert guard.bearing([data], (demand,)) == 0
    with pytest.raises(StrangeIdsError) as found:
        guard.check(data, LogConfig(max_message_bytes=2**30), 1_000, (demand,))
    assert found.value.rows == (100,)
    assert len(data) > 100 * MIB + HEADER_BYTES
