"""Hostile requests of every API and version, for a process of its own: `python -m … SEED CASES FILE [unchecked]`.

Each case stands in FILE before it is decoded, for whoever looks after the process has died. `unchecked` gives kio the
bytes as they came: the proof that the cases are hostile.
"""

import io
import random
import resource
import struct
import sys
import uuid
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from replication.errors import ProtocolError
from replication.protocol import apis, kio_newer
from replication.protocol.apis import INTERBROKER, SERVED, ApiKey
from replication.protocol.kio_entities import build

MEMORY_BYTES = 1 << 30  # above what the process has when it begins
COMPACT_LENGTHS = (
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\x7f",
)
LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x40\0\0\0",
    b"\x7f\xff",
)
INTS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16}


def main():
    seed, cases, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    is_checked = sys.argv[4:] != ["unchecked"]
    rng = random.Random(seed)
    decode = apis.decode_request if is_checked else decode_unchecked
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    done = refused = 0
    with path.open("wb", buffering=0) as notes:
        for key, versions in SERVED.items():
            for version in range(versions.first, versions.last + 1):
                for number in range(cases):
                    valid = frame_of(key, version, rng)
                    frame = valid if number == 0 else mutated(valid, rng)
                    notes.seek(0)
                    notes.write(f"{key.name} {version} {frame.hex()}\n".encode())
                    done += 1
                    try:
                        decode(memoryview(bytearray(frame)))
                    except ProtocolError:
                        assert frame != valid, (key, version, frame.hex())
                        refused += 1
    print(done, refused)


def decode_unchecked(frame):
    number, version = struct.unpack_from(">hh", frame)
    if number not in SERVED or number in INTERBROKER:
        return
    try:
        schema = kio_newer.request_schema(number, version)
        entity_reader(schema)(bytes(frame[len(frame_head(frame)) :]), 0)
    except Exception:  # noqa: BLE001  it is the death of the process that is looked for
        return


def frame_head(frame):
    """The header of a frame that `frame_of` made."""
    return bytes(frame[: 8 + 2 + 4 + (1 if apis.is_flexible(*struct.unpack_from(">hh", frame)) else 0)])


def frame_of(key, version, rng):
    """A valid request of any shape."""
    schema = request_schema(key, version)
    head = struct.pack(">hhih", key, version, rng.getrandbits(31), 4) + b"fuzz"
    if schema.__flexible__:
        head += b"\0"
    out = io.BytesIO()
    entity = anything(schema, rng)
    entity_writer(schema)(out, entity)
    return head + out.getvalue()


def request_schema(key, version):
    if key in (ApiKey.PRODUCE, ApiKey.FETCH):
        return kio_newer.request_schema(key, version)
    return apis.request_class(key, version)


def anything(schema, rng):
    return build(schema, {f.name: value(f, f.type, rng) for f in fields(schema)})


def value(field, kind, rng):
    if get_origin(kind) is tuple:
        return tuple(value(field, get_args(kind)[0], rng) for _ in range(rng.randrange(4)))
    if type(None) in get_args(kind):
        inner = next(argument for argument in get_args(kind) if argument is not type(None))
        return None if rng.random() < 0.3 and "tag" not in field.metadata else value(field, inner, rng)
    name = field.metadata.get("kafka_type")
    if name is None:
        return anything(kind, rng)
    if field.name == "isolation_level":
        return rng.randrange(2)
    return MAKERS[name](rng) if name in MAKERS else rng.randrange(2 ** INTS[name])


MAKERS = {
    "float64": lambda rng: rng.uniform(-1e9, 1e9),
    "string": lambda rng: "".join(rng.choices("topicé€", k=rng.choice((0, 1, 5, 200)))),
    "bytes": lambda rng: rng.randbytes(rng.choice((0, 1, 61, 300))),
    "records": lambda rng: rng.randbytes(rng.choice((0, 1, 61, 300))),
    "bool": lambda rng: rng.random() < 0.5,
    "uuid": lambda rng: uuid.UUID(int=rng.getrandbits(128) | 1),
    "error_code": lambda rng: ErrorCode(rng.randrange(100)),
    "timedelta_i32": lambda rng: rng.randrange(2**31),
    "timedelta_i64": lambda rng: rng.randrange(2**31),
}


def mutated(frame, rng):
    """The frame with up to three things wrong behind its first eight bytes (and sometimes there)."""
    raw = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(0 if rng.random() < 0.1 else min(8, len(raw) - 1), len(raw))
        match rng.randrange(6):
            case 0:
                del raw[at:]
                raw = raw or bytearray(frame)
            case 1:
                raw[at] = rng.randrange(256)
            case 2:
                raw[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                noise = rng.choice(LENGTHS)
                raw[at : at + len(noise)] = noise
            case 4:
                raw[at : at + 1] = rng.choice(COMPACT_LENGTHS)
            case 5:
                raw[at:] = rng.randbytes(len(raw) - at)
    return bytes(raw)


if __name__ == "__main__":
    main()
