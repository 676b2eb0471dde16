"""Every API in every version against hostile requests, in a child process: kio would abort it on a hostile length.

PYLOG_FUZZ=SEED:CASES fuzzes longer: so many cases per version.
"""

import os
import signal
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from dataclasses import fields
from typing import get_args, get_origin

import pytest

from replication.errors import ProtocolError, TooManyItemsError
from replication.protocol import apis, kio_reader, wire
from replication.protocol.apis import ApiKey, Versions
from replication.protocol.kio_pieces import struct_class
from tests.support.repeats import times

SEED, CASES = os.environ.get("PYLOG_FUZZ", f"1:{times(10, 30)}").split(":")


def fuzz(tmp_path, seed, cases, *more):
    """(exit code, output, the last case)"""
    notes = tmp_path / "case"
    command = [sys.executable, "-m", "tests.support.fuzz", seed, cases, str(notes), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, notes.read_bytes().split(b"\n")[0].decode()


def test_every_version_of_every_api_refuses_hostile_requests_and_lives(tmp_path):
    code, output, case = fuzz(tmp_path, SEED, CASES)
    assert code == 0, f"{output[-3000:]}\nat: {case[:2000]}"
    done, refused = map(int, output.split())
    assert done == int(CASES) * sum(last - first + 1 for first, last in apis.SERVED.values())
    assert 0.3 * done < refused < done


def test_without_the_checks_such_requests_kill_a_process(tmp_path):
    code, output, _ = fuzz(tmp_path, SEED, "60", "unchecked")
    assert code == -signal.SIGABRT or "MemoryError" in output


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_COMMIT])
def test_a_message_of_very_many_items_is_refused_before_they_are_made(key):
    """A request of 100 MB could stand for 20 million topics, and those for gigabytes of memory."""
    version = apis.SERVED[key].last
    head = {
        ApiKey.PRODUCE: b"\0" + b"\0\0" * 3,
        ApiKey.FETCH: bytes(12) + b"\0" + bytes(8),
        ApiKey.METADATA: b"",
        ApiKey.OFFSET_COMMIT: b"\x02g" + bytes(4) + b"\x02m" + b"\0",
    }[key]
    count = 2_000_000
    body = head + wire.put_uvarint(count + 1) + bytes(count * 20)
    with pytest.raises(ProtocolError, match="items"):
        apis.decode_request_body(key, version, memoryview(body), 0)


def tags_of(count):
    """So many tagged fields that nobody knows, from 1000 on, each of two or three bytes and nothing."""
    return wire.put_uvarint(count) + b"".join(wire.put_uvarint(tag) + b"\0" for tag in range(1000, 1000 + count))


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001])
def test_a_struct_has_no_more_tags_than_at_a_kafka(count):
    tags, heartbeat = tags_of(count), b"\x01" + bytes(4) + b"\x01\0"
    if count <= 10_000:
        assert len(wire.COMPACT.tags(tags, 0)[0]) == count
        apis.decode_request_body(ApiKey.HEARTBEAT, 4, memoryview(heartbeat + tags), 0)
        return
    with pytest.raises(ProtocolError, match="tagged"):
        wire.COMPACT.tags(tags, 0)
    with pytest.raises(ProtocolError, match="tagged"):
        apis.decode_request_body(ApiKey.HEARTBEAT, 4, memoryview(heartbeat + tags), 0)


def test_a_tag_that_comes_twice_is_refused():
    with pytest.raises(ProtocolError, match="twice"):
        wire.COMPACT.tags(b"\x02\x05\x00\x05\x00", 0)


@pytest.mark.parametrize("place", ["partition", "topic"])
@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_tags_are_items_of_their_message(key, place):
    """Else a short request could hold up the event loop with a million of them."""
    version = 12
    partition = bytes(4) + b"\x01" if key is ApiKey.PRODUCE else bytes(32)
    head = b"\0" + bytes(6) if key is ApiKey.PRODUCE else bytes(4 + 13 + 8)
    tags = {"partition": (tags_of(90), b"\0"), "topic": (b"\0", tags_of(90))}[place]
    topic = b"\x02t" + b"\x02" + partition + tags[0] + tags[1]
    end = b"\0" if key is ApiKey.PRODUCE else b"\x01\x01\0"
    body = memoryview(head + b"\x02" + topic + end)
    assert len(apis.decode_request_body(key, version, body, 0, 92).topics) == 1
    with pytest.raises(TooManyItemsError):
        apis.decode_request_body(key, version, body, 0, 91)


@pytest.mark.parametrize("key", apis.ENTITIES, ids=lambda key: key.name)
def test_an_item_of_any_array_has_a_byte_at_least(key):
    """So nothing is made of an array whose bytes are not there: a length is compared with them first."""
    for version in range(key.versions.first, key.versions.last + 1):
        looked = [apis.request_class(key, version)]
        while looked:
            cls = looked.pop()
            form = wire.COMPACT if cls.__flexible__ else wire.LEGACY
            for field in fields(cls):
                if (item := struct_class(field)) is not None:
                    looked.append(item)
                arguments = [kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is tuple]
                for kind in arguments:
                    assert kio_reader.item_reader(get_args(kind)[0], field, form, is_nullable=False)[1] >= 1


@pytest.mark.parametrize("key", apis.ENTITIES, ids=lambda key: key.name)
def test_a_promise_of_a_million_items_costs_no_memory(key):
    cls = apis.request_class(key, key.versions.last)
    count = wire.put_uvarint(1_000_001) if cls.__flexible__ else struct.pack(">i", 1_000_000)

    def promise():
        for at in range(8):  # one of these is where an array is
            with suppress(ProtocolError, OverflowError, *wire.MALFORMED):
                apis.decode_request_body(key, key.versions.last, memoryview(bytes(at) + count + bytes(at)), 0)

    promise()  # readers are made once
    tracemalloc.start()
    try:
        promise()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# key: the range that clients must be told, by what they need (kcat compresses only if Produce begins at 0).
ADVERTISED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5),
    17: (0, 1), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 6),
    29: (1, 3), 30: (1, 3), 31: (1, 3),
    32: (1, 4), 33: (0, 2), 35: (1, 5),
    36: (0, 2), 37: (0, 3), 42: (0, 3), 43: (0, 2), 44: (0, 1), 74: (0, 1),
    48: (0, 1), 49: (0, 1),
    45: (0, 1), 46: (0, 0), 47: (0, 0), 50: (0, 0), 51: (0, 0),
    57: (0, 2), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2),
    68: (0, 1), 69: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 90: (0, 1), 91: (0, 0), 92: (0, 0),
    78: (1, 2), 79: (1, 2),
    83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1),
}  # fmt: skip


def test_what_is_advertised_is_what_is_served_and_nothing_between_brokers():
    assert {key: (first, last) for key, first, last in apis.advertised(ApiKey)} == ADVERTISED
    some = [ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.UPDATE_METADATA]
    assert [key for key, *_ in apis.advertised(some)] == [
        ApiKey.PRODUCE,
        ApiKey.METADATA,
        ApiKey.API_VERSIONS,
    ]


@pytest.mark.parametrize("version", range(6))
def test_api_versions_is_answered_in_every_version(version):
    software = {"client_software_name": "a-client", "client_software_version": "1.0"}
    frame = b"".join(apis.encode_request(ApiKey.API_VERSIONS, version, 5, "me", software if version >= 3 else {}))
    answer = answered(frame[4:])
    assert answer[:4] == b"\0\0\0\5"  # a header without tags, whatever the version
    correlation_id, body = apis.decode_response(ApiKey.API_VERSIONS, version, memoryview(answer))
    assert (correlation_id, body.error_code.value) == (5, 0)
    assert [(row.api_key, row.min_version, row.max_version) for row in body.api_keys] == [
        (0, 0, 13),
        (18, 0, 5),
    ]


def test_api_versions_of_an_unknown_version_is_answered_in_the_oldest():
    answer = answered(b"\x00\x12\x00\x63\x00\x00\x00\x05" + b"anything")
    _, body = apis.decode_response(ApiKey.API_VERSIONS, 0, memoryview(answer))
    assert body.error_code.value == 35
    assert (18, 0, 5) in [(row.api_key, row.min_version, row.max_version) for row in body.api_keys]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a-", "é"])
def test_software_of_an_impossible_name_is_refused(name):
    software = {"client_software_name": name, "client_software_version": "1"}
    frame = b"".join(apis.encode_request(ApiKey.API_VERSIONS, 3, 5, "me", software))
    _, body = apis.decode_response(ApiKey.API_VERSIONS, 3, memoryview(answered(frame[4:])))
    assert (body.error_code.value, len(body.api_keys)) == (42, 0)


def test_brokers_with_transactions_tell_java_that_they_are_of_version_2():
    name = b"\x14transaction.version"
    supported = b"\x00\x1a" + b"\x02" + name + b"\x00\x00\x00\x02\x00"  # 0 to 2
    epoch = b"\x01\x08" + bytes(8)
    finalized = b"\x02\x1a" + b"\x02" + name + b"\x00\x02\x00\x02\x00"
    software = {"client_software_name": "java", "client_software_version": "4.1"}
    for version, tags in ((2, b""), (3, b"\x02" + epoch + finalized), (4, b"\x03" + supported + epoch + finalized)):
        frame = b"".join(apis.encode_request(ApiKey.API_VERSIONS, version, 5, "me", software if version >= 3 else {}))
        answer = answered(frame[4:], [ApiKey.END_TXN])
        end_txn = b"\x00\x1a\x00\x00\x00\x05" + b"\x00"[: version // 3]
        assert answer.endswith(end_txn + bytes(4) + tags), answer


def answered(frame, keys=(ApiKey.PRODUCE,)):
    request = apis.decode_request(memoryview(frame))
    version, response = apis.answer_api_versions(request, keys)
    parts = apis.encode_response(ApiKey.API_VERSIONS, version, request.correlation_id, response)
    return b"".join(parts)[4:]


@pytest.mark.parametrize("key", apis.SERVED)
def test_versions_outside_the_range_are_refused(key):
    first, last = apis.SERVED[key]
    for version in {-1, first - 1, last + 1, 127} - {*range(first, last + 1)}:
        frame = key.to_bytes(2, "big") + (version & 0xFFFF).to_bytes(2, "big") + bytes(40)
        if key is ApiKey.API_VERSIONS:
            assert apis.decode_request(memoryview(frame)).body is None
        else:
            with pytest.raises(ProtocolError, match="not served"):
                apis.decode_request(memoryview(frame))


def test_a_range_is_never_empty():
    assert all(isinstance(versions, Versions) and versions.first <= versions.last for versions in apis.SERVED.values())
