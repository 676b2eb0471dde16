"""The numba kernels: batches to columns, columns to batches, key hashes. Import it where it is used.

Kernels take plain addresses and sizes (int64) and return plain numbers: nothing is boxed, a call costs about a
microsecond, and the GIL is free while they run. Python callers keep the memory alive. The bytes that `decode` reads may
be anything: every length is checked against the end of its section before it is used.

From the ground up: `native` (how they are compiled, loads and stores), `varints`, `crc`, `hashing`,
`headers`, `decoding`, `checking` (records against their header), `encoding`, `contents` (a sum over rows in any order),
`json_values` and `documents` (JSON objects whose members fit the declared types), `offset_map` (keys to their last
offset), `newest` (the newest row of each key), `stored` (batches and records where they lie), `compacting`. Only users
of Avro import `avro_values`, `avro_reading` and `avro_writing`, only readers of JSON `json_parts` and `json_columns`
(plain objects to columns), and only those of maps and base64 `json_members`.

Signatures are explicit, so importing compiles, or loads what an earlier import compiled (see `records.compiled_code`).
"""

from logstore.records.addresses import Encoded, Rows
from logstore.records.compiled_code import note_done
from logstore.records.kernels.checking import (
    BAD_TIME,
    NO_KEY,
    OTHER_MAX,
    ROW_SHIFT,
    check_records,
    good_batches,
    max_timestamp,
    strange_ids,
    strange_row,
)
from logstore.records.kernels.contents import digest
from logstore.records.kernels.crc import crc32c
from logstore.records.kernels.decoding import REASONS, Columns, Decoded, Source, decode, scan, walk
from logstore.records.kernels.documents import (
    ARRAY,
    BASE64,
    BOOLEAN,
    DAY,
    FRACTION,
    INTEGER,
    LOCAL_MOMENT,
    MOMENT,
    MORE,
    NULL,
    NUMBER,
    OBJECT,
    PLAIN,
    TEXT,
    Members,
    plain_objects,
)
from logstore.records.kernels.encoding import encode
from logstore.records.kernels.hashing import partitions_of
from logstore.records.kernels.headers import HeaderColumns, decode_headers
from logstore.records.kernels.native import CACHE_DIR

__all__ = [
    "ARRAY",
    "BAD_TIME",
    "BASE64",
    "BOOLEAN",
    "DAY",
    "FRACTION",
    "INTEGER",
    "LOCAL_MOMENT",
    "MOMENT",
    "MORE",
    "NO_KEY",
    "NULL",
    "NUMBER",
    "OBJECT",
    "OTHER_MAX",
    "PLAIN",
    "REASONS",
    "ROW_SHIFT",
    "TEXT",
    "Columns",
    "Decoded",
    "Encoded",
    "HeaderColumns",
    "Members",
    "Rows",
    "Source",
    "check_records",
    "crc32c",
    "decode",
    "decode_headers",
    "digest",
    "encode",
    "good_batches",
    "max_timestamp",
    "partitions_of",
    "plain_objects",
    "scan",
    "strange_ids",
    "strange_row",
    "walk",
]

note_done(CACHE_DIR)
