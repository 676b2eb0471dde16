"""Confluent's framing of a whole column."""

import pyarrow as pa

from logstore.schemas.avro import wire


def test_ids_are_read_and_what_has_none_has_a_reason():
    values = [
        wire.header(7) + b"abc",
        None,
        b"",
        b"\x00\x00\x00\x01",
        b"\x01\x00\x00\x00\x07abc",
        wire.header(2**31 - 1),
    ]
    for array in (pa.array(values), pa.array([b"x", *values], pa.large_binary()).slice(1)):
        found = wire.split(array)
        assert found.ids.tolist() == [7, -1, -3, -3, -2, 2**31 - 1]
        assert [found.data.sizes[i] for i in (0, 1, 5)] == [3, -1, 0]
        assert found.reasons == {
            2: "too short for a schema id: fewer than 5 bytes",
            3: "too short for a schema id: fewer than 5 bytes",
            4: "no schema id: the first byte is not 0",
        }


def test_the_header_is_a_zero_and_four_bytes_of_the_id():
    assert wire.header(258) == b"\x00\x00\x00\x01\x02"
