"""A few rows are encoded without the kernels, to the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logstore.records import few, kernels
from logstore.records.partitioner import partition_of
from logstore.records.rows import Rows
from logstore.records.tables import bytes_column, repeated
from tests.support.records import INT64, record_lists, table_of

ROOT = Path(__file__).parents[4]


@given(record_lists(INT64, max_size=12), st.integers(61, 30_000), st.booleans())
def test_python_writes_what_the_kernels_write(rows, limit, is_reversed):
    data = Rows(table_of(rows), now_ms=0)
    order = np.arange(len(rows), dtype=np.int64)[::-1].copy() if is_reversed else None
    first, addresses = 0, data.addresses(order)
    while first < len(rows):
        found = []
        for encode in (few.encode, kernels.encode):
            room = np.zeros(limit, np.uint8)
            encoded = encode(addresses, first, len(rows), room.ctypes.data, limit)
            found.append((encoded, room[: encoded.size].tobytes()))
        assert found[0] == found[1]
        first = found[0][0].end if found[0][0].size else first + 1


@given(st.lists(st.none() | st.binary(max_size=9), max_size=40), st.integers(0, 2**31 - 1))
def test_columns_are_made_as_arrow_makes_them(values, number):
    column = bytes_column(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.large_binary()))
    assert repeated(number, len(values)).equals(pa.array([number] * len(values), pa.int32()))


def asked(code, *arguments):
    """The JSON that a new process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_that_appends_few_rows_loads_no_kernels_and_one_that_appends_many_does(tmp_path):
    code = """if True:
        import json, sys, threading, logstore
        from logstore.records import few
        rows, found = {"value": ["x"] * few.FEW}, []
        with logstore.open(sys.argv[1]) as store:
            store.create_topic("t")
            for _ in range(few.MANY // few.FEW):
                store.append("t", rows)
                found.append("numba" in sys.modules)
            store.append("t", rows)
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
            found.append("numba" in sys.modules)
            store.append("t", rows)
            found.append(store.read("t", partition=0).read_all()["value"].to_pylist() == [b"x"] * 4 * few.FEW)
        print(json.dumps(found))
    """
    assert asked(code, tmp_path / "data") == [False, False, True, True]


def test_keys_have_the_same_partitions_without_the_kernels(tmp_path):
    code = """if True:
        import json, sys, logstore
        with logstore.open(sys.argv[1]) as store:
            store.create_topic("t", partitions=7)
            store.append("t", {"key": [str(i).encode() for i in range(50)], "value": [None] * 50})
            is_plain = "numba" not in sys.modules
            found = [[k.decode() for k in store.read("t", partition=p).read_all()["key"].to_pylist()] for p in range(7)]
        print(json.dumps([is_plain, found]))
    """
    is_plain, found = asked(code, tmp_path / "data")
    assert is_plain
    assert found == [[str(i) for i in range(50) if partition_of(str(i).encode(), 7) == p] for p in range(7)]
