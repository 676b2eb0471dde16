"""The guard of a leader looks into the records of a batch, in bounded memory."""

import random
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import InvalidRecordError
from logstore.records.batch import HEADER_BYTES, Record, build, seal
from logstore.records.compression import Codec
from replication.errors import InvalidRecordsError
from replication.replica.leader import guard
from tests.support.inside import loaded_kernels
from tests.support.repeats import times

MIB = 1024 * 1024
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """The memory of loading them is not measured here."""
    guard.load()


def check(data):
    guard.check(bytearray(data), COMPACTED, 1_000)


def batch(*rows, codec=Codec.NONE):
    return bytes(
        build(
            [Record(n, 1_000, key, value, headers) for n, (key, value, headers) in enumerate(rows)],
            codec=codec,
        )
    )


@pytest.mark.parametrize("codec", Codec)
def test_records_without_a_key_are_named_whatever_stands_around_them(codec):
    rows = [(b"k", b"v", ()), (None, b"v", (("h", b"x"), ("g", None))), (b"", None, ()), (None, None, ())]
    with pytest.raises(InvalidRecordsError) as found:
        check(batch(*rows, codec=codec))
    assert found.value.rows == (1, 3)
    check(batch(rows[0], rows[2], codec=codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD][:: times(2, 1)])
def test_a_batch_that_explodes_is_refused_in_bounded_memory(codec):
    data = batch((b"k", bytes(2 * guard.EXPANDED_BYTES_MAX), ()), codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecordError):
            check(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2.1 * guard.EXPANDED_BYTES_MAX + 12 * len(data)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_batch_may_expand_to_the_bound_and_four_times_its_size(monkeypatch, is_compiled):
    if not is_compiled:
        for name, value in {"check": None, "looks": 0}.items():
            monkeypatch.setattr(loaded_kernels(), name, value)
    data = batch((b"k", random.Random(1).randbytes(2_000) + bytes(6_000), ()), codec=Codec.GZIP)
    expanded = len(batch((b"k", bytes(8_000), ()))) - HEADER_BYTES
    monkeypatch.setattr(guard, "EXPANDED_BYTES_MAX", expanded - 4 * len(data))
    check(data)
    monkeypatch.setattr(guard, "EXPANDED_BYTES_MAX", expanded - 4 * len(data) - 10)
    with pytest.raises((InvalidRecordError, InvalidRecordsError), match="expands to more than"):
        check(data)


@pytest.mark.parametrize(("version", "is_taken"), [(6, False), (7, True)])
def test_zstd_is_taken_from_produce_7_on(version, is_taken):
    accepts = guard.Accepts(version, transactional=False)
    assert (guard.refuse_header(accepts, batch((b"k", b"v", ()), codec=Codec.ZSTD)) is None) == is_taken


def test_very_many_small_records_cost_no_object_each():
    data = batch(*[(b"", b"", ())] * 5_000, codec=Codec.GZIP)
    tracemalloc.start()
    try:
        check(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < MIB // 4


def test_an_error_names_only_so_many_records():
    with pytest.raises(InvalidRecordsError) as found:
        check(batch(*[(None, b"", ())] * 3000))
    assert len(found.value.rows) == 1000


@given(data=st.data(), count=st.integers(1, 5), compacted=st.booleans())
def test_the_compiled_look_finds_what_the_slow_one_finds(data, count, compacted):
    """Whatever a byte of the records or of the header's numbers is changed to: both take it, or neither does."""
    rows = [(data.draw(st.sampled_from([b"k", None])), b"v", (("h", b"x"),) * (n % 2)) for n in range(count)]
    records = bytearray(batch(*rows))
    for _ in range(data.draw(st.integers(0, 3))):
        records[data.draw(st.sampled_from([*range(27, 43), *range(HEADER_BYTES, len(records))]))] = data.draw(
            st.integers(0, 255)
        )
    seal(records, 0, len(records))
    terms = guard.Terms(int(compacted), *data.draw(st.sampled_from([(-(2**63) + 1, 2**63 - 1), (900, 1_100)])))
    slow, quick = guard.look_slowly(records, terms), guard._look(loaded_kernels().check, records, terms)
    assert (slow is None) == (quick is None), (slow, quick)
    if slow is not None and guard.OTHER_MAX in (slow.reason, quick.reason):
        assert slow == quick


@given(data=st.data())
def test_of_batches_together_as_many_pass_as_one_by_one(data):
    """Whichever of them is the first that is compressed, has no key, or is not what its header says."""
    rows = ((b"k", b"v", ()),), ((b"k", b"v", ()), (b"", b"w", (("h", b"x"),))), ((None, b"v", ()),)
    kinds = data.draw(st.lists(st.sampled_from([*rows, "compressed", "damaged"]), min_size=1, max_size=5))
    batches = [
        bytearray(batch(*rows[1], codec=Codec.LZ4 if kind == "compressed" else Codec.NONE))
        if isinstance(kind, str)
        else bytearray(batch(*kind))
        for kind in kinds
    ]
    for kind, each in zip(kinds, batches, strict=True):
        if kind == "damaged":
            each[HEADER_BYTES] ^= 2  # the length of the first record
    terms = guard.terms_of(COMPACTED, 1_000)
    good = [kind in rows[:2] for kind in kinds]
    first = good.index(False) if False in good else len(good)
    assert guard.passing(batches, terms) == first
    assert [guard.passing([each], terms) for each in batches] == good


def test_a_broker_that_is_sent_little_does_without_the_kernels(monkeypatch):
    """They are 120 MB, and a second: they come with what makes up for that.

    Nor does a look load them where they are there already: another thread may be about to compile the rest of them.
    """
    loaded = threading.Event()
    monkeypatch.setattr(guard, "LOOKS_BEFORE", 100)
    monkeypatch.setattr(guard, "load", loaded.set)
    for name, value in {"check": None, "good_batches": None, "thread": None, "looks": 0}.items():
        monkeypatch.setattr(loaded_kernels(), name, value)
    rows = [(b"k", b"v", ())] * 10
    for _ in range(10):
        assert guard.passing([bytearray(batch(*rows))], guard.terms_of(COMPACTED, 1_000)) == 1
    assert not loaded.is_set()
    assert guard.passing([bytearray(batch((None, b"v", ())))], guard.terms_of(COMPACTED, 1_000)) == 0
    assert loaded.wait(10)
