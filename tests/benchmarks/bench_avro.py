"""Avro data to columns and back, on one core, against fastavro, which has a dict for each record.

    python tests/benchmarks/bench_avro.py

The records have six fields, and the nested ones a decimal, an array, a map, a union and an enum beside them. A reader
that has other fields and wider types is resolved in the same pass. In one shape a row in a thousand is cut off; a small
batch has 100 rows. Everything is CPU time.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from harness import AGAIN, interleave, ratio, show

from logstore.schemas.avro.decoding import Decoder
from logstore.schemas.avro.encoding import Encoder
from logstore.schemas.avro.schema import parse

ROWS = 50_000
SMALL_ROWS = 100
BAD_EVERY = 1000
ROUNDS = 9


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


PLAIN = (
    ("user", "string"),
    ("amount", ["null", "double"]),
    ("number", "long"),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("is_new", "boolean"),
    ("text", "string"),
)
NESTED = (
    *PLAIN,
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("tags", {"type": "array", "items": "string"}),
    ("counts", {"type": "map", "values": ["null", "int"]}),
    ("either", ["string", "null", "int"]),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
)
READER = record(("text", "string"), ("number", "double"), ("more", ["null", "string"]), ("amount", ["double", "null"]))
READER["fields"][2]["default"] = None


def value(i: int) -> dict[str, Any]:
    return {
        "user": f"u{i % 977}",
        "amount": None if i % 7 == 0 else i % 9973 / 100,
        "number": i,
        "at": 1_700_000_000_000_000 + i,
        "is_new": i % 3 == 0,
        "text": f"{i:072}",
        "price": Decimal(i) / 100,
        "tags": ["new", "sold"] * (i % 3),
        "counts": {"seen": i, "sold": None} if i % 2 else {},
        "either": ["text", None, i][i % 3],
        "kind": "AB"[i % 2],
    }


def written(schema: Any, rows: int) -> list[bytes]:
    found, parsed = [], fastavro.parse_schema(schema)
    for i in range(rows):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value(i))
        found.append(out.getvalue())
    return found


def reading(name: str, writer: Any, reader: Any, data: list[bytes], times: int) -> list[object]:
    values = list(data)
    if "cut off" in name:
        values[BAD_EVERY // 2 :: BAD_EVERY] = [each[:5] for each in values[BAD_EVERY // 2 :: BAD_EVERY]]
    array, decoder = pa.array(values, pa.binary()), Decoder(parse(json.dumps(writer)), parse(json.dumps(reader)))
    theirs, shown = fastavro.parse_schema(writer), None if reader is writer else fastavro.parse_schema(reader)

    def peer() -> object:
        return [fastavro.schemaless_reader(io.BytesIO(each), theirs, shown) for _ in range(times) for each in data]

    return measured(name, len(data) * times, lambda: [decoder.decode(array) for _ in range(times)], peer)


def writing(name: str, schema: Any, rows: int, times: int) -> list[object]:
    parsed, ours = fastavro.parse_schema(schema), parse(json.dumps(schema))
    decoder, encoder = Decoder(ours, ours), Encoder(ours)
    arrays = decoder.decode(pa.array(written(schema, rows))).columns
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(decoder.fields))
    values = [value(i) for i in range(rows)]

    def peer() -> object:
        for _ in range(times):
            for each in values:
                out = io.BytesIO()
                fastavro.schemaless_writer(out, parsed, each)
                out.getvalue()
        return None

    return measured(name, rows * times, lambda: [encoder.encode(batch) for _ in range(times)], peer)


def measured(name: str, rows: int, ours: Callable[[], object], peer: Callable[[], object]) -> list[object]:
    seconds = interleave({"ours": ours, "peer": peer, AGAIN: peer}, rounds=ROUNDS, cpu=True)
    return [
        name,
        f"{rows / statistics.median(seconds['ours']) / 1e6:.2f}",
        ratio(seconds["ours"], seconds["peer"]),
        ratio(seconds[AGAIN], seconds["peer"]),
    ]


def bench() -> Iterator[list[object]]:
    plain, nested = record(*PLAIN), record(*NESTED)
    data = written(plain, ROWS)
    yield reading("read, 100 B", plain, plain, data, 1)
    yield reading("read, 1 in 1,000 cut off", plain, plain, data, 1)
    yield reading("read as another schema", plain, READER, data, 1)
    yield reading("read, nested", nested, nested, written(nested, ROWS), 1)
    yield reading(f"read, {SMALL_ROWS} rows a call", plain, plain, data[:SMALL_ROWS], ROWS // SMALL_ROWS)
    yield writing("written, 100 B", plain, ROWS, 1)
    yield writing("written, nested", nested, ROWS, 1)
    yield writing(f"written, {SMALL_ROWS} rows a call", plain, SMALL_ROWS, ROWS // SMALL_ROWS)


def main() -> None:
    show("Avro, CPU time", ["records", "M records/s", "of fastavro", "noise"], bench())


if __name__ == "__main__":
    main()
