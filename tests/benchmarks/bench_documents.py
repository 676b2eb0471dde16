"""JSON documents to typed columns and back, on one core: for typed topics, and for Delta tables.

    python tests/benchmarks/bench_documents.py

The limit is Arrow's JSON parser over the same documents in one buffer, a line each: it gives up all of them for one bad
one. The floor is `json.loads` of every value, without a check or a column. In the other shapes one row in a thousand is
bad: it ends too early, has text for a number, or a 30th of February. Maps and binary are compared with reading the same
documents one after the other, which is how a misfit is read.
The way back is compared with `json.dumps` of every row, as a dict that is there already.
Everything is CPU time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pj
from harness import AGAIN, interleave, ratio, show

from logstore.schemas.conversion import parse_each
from logstore.schemas.documents import parse
from logstore.schemas.rendering import render

ROWS = 200_000
BAD_EVERY = 1000
ROUNDS = 7
FIELDS = [
    pa.field("user", pa.string()),
    pa.field("amount", pa.float64()),
    pa.field("number", pa.int64()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("is_new", pa.bool_()),
]
NESTED = [
    pa.field("user", pa.string()),
    pa.field("raw", pa.binary()),
    pa.field("counts", pa.map_(pa.string(), pa.int64())),
]
NESTED_ROWS = 50_000
SHAPES = {
    "no bad rows": None,
    "1 in 1,000 cut off": b'{"user": "u1", "amo',
    "1 in 1,000 misfits": b'{"number": "none"}',
    "1 in 1,000 no day": b'{"at": "2024-02-30T00:00:00Z"}',
}


def documents() -> list[bytes]:
    """About 100 bytes each."""
    return [
        json.dumps(
            {
                "user": f"u{i % 977}",
                "amount": i % 9973 / 100,
                "number": i,
                "at": f"2024-01-31T10:{i // 60 % 60:02d}:{i % 60:02d}Z",
                "is_new": i % 3 == 0,
            }
        ).encode()
        for i in range(ROWS)
    ]


def bench() -> Iterator[list[object]]:
    good = documents()
    lines = pa.py_buffer(b"\n".join(good))
    options = pj.ParseOptions(explicit_schema=pa.schema(FIELDS), unexpected_field_behavior="ignore")
    blocks = pj.ReadOptions(use_threads=False, block_size=1 << 20)

    def limit() -> object:
        return pj.read_json(pa.BufferReader(lines), read_options=blocks, parse_options=options)

    for shape, bad in SHAPES.items():
        values = list(good)
        if bad is not None:
            values[BAD_EVERY // 2 :: BAD_EVERY] = [bad] * len(values[BAD_EVERY // 2 :: BAD_EVERY])
        array = pa.array(values, pa.binary())
        seconds = interleave(
            {
                "ours": lambda array=array: parse(array, FIELDS),
                "limit": limit,
                AGAIN: limit,
                "floor": lambda: [json.loads(value) for value in good],
            },
            rounds=ROUNDS,
            cpu=True,
        )
        yield [
            shape,
            f"{ROWS / statistics.median(seconds['ours']) / 1e6:.2f}",
            ratio(seconds["ours"], seconds["limit"]),
            ratio(seconds[AGAIN], seconds["limit"]),
            ratio(seconds["ours"], seconds["floor"]),
        ]


def bench_nested() -> Iterator[list[object]]:
    good = [
        json.dumps({"user": f"u{i % 977}", "raw": "AAECAwQF" * 4, "counts": {"seen": i, "sold": None}}).encode()
        for i in range(NESTED_ROWS)
    ]
    for number, name in [(2, "binary"), (3, "binary and a map")]:
        for every in (None, BAD_EVERY):
            values = list(good)
            if every:
                values[every // 2 :: every] = [b'{"raw": "A"}'] * len(values[every // 2 :: every])
            array = pa.array(values, pa.binary())
            ways = {
                "ours": lambda array=array, number=number: parse(array, NESTED[:number]),
                "each": lambda array=array, number=number: parse_each(array, NESTED[:number]),
                "floor": lambda: [json.loads(value) for value in good],
            }
            seconds = interleave(ways, rounds=ROUNDS, cpu=True)
            yield [
                name + (", 1 in 1,000 bad" if every else ""),
                f"{NESTED_ROWS / statistics.median(seconds['ours']) / 1e6:.2f}",
                ratio(seconds["ours"], seconds["each"]),
                ratio(seconds["ours"], seconds["floor"]),
            ]


def bench_writing() -> Iterator[list[object]]:
    array = pa.array(documents(), pa.binary())
    rows = pa.RecordBatch.from_arrays(parse(array, FIELDS).columns, schema=pa.schema(FIELDS))
    dicts = [json.loads(value) for value in documents()]
    ways = {"ours": lambda: render(rows), "dumps": lambda: [json.dumps(row) for row in dicts]}
    seconds = interleave(ways, rounds=ROUNDS, cpu=True)
    yield [f"{ROWS / statistics.median(seconds['ours']) / 1e6:.2f}", ratio(seconds["ours"], seconds["dumps"])]


def main() -> None:
    columns = ["documents of 100 B", "M records/s", "of Arrow's parser", "noise", "of json.loads"]
    show("JSON to columns, CPU time", columns, bench())
    columns = ["documents of 90 B", "M records/s", "of one by one", "of json.loads"]
    show("Maps and binary, CPU time", columns, bench_nested())
    show("Columns to JSON, CPU time", ["M records/s", "of json.dumps"], bench_writing())


if __name__ == "__main__":
    main()
