"""One request at a time to any broker over a plain socket: a test says every byte, and sees a connection closed."""

import socket
import struct
import time
from contextlib import suppress

from replication.protocol import apis
from replication.protocol.kio_entities import build
from replication.protocol.messages import FetchPartition, FetchRequest, FetchTopic

PATIENCE_S = 20
CLOSED, SILENT = "CLOSED", "SILENT"


def until(found, within_s=60, story=str):
    """Return what it finds, once that is something; `story` tells, as a text, why it may not be."""
    deadline = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < deadline, f"it did not come to that {story()}"
        time.sleep(0.02)
    return value


class Asker:
    """A client of one broker. `word` is in its topics' and groups' names, so that runs do not meet.

    `source`: the address that it has itself.
    """

    def __init__(self, address, word="", patience_s=PATIENCE_S, source=""):
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._source = source, 0
        self._socket = None
        self._sent = 0
        self._patience_s = patience_s
        self.word = word

    def close(self):
        closing, self._socket = self._socket, None
        if closing is not None:
            with suppress(OSError):
                closing.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads from it
            closing.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def named(self, name):
        return f"{name}-{self.word}"

    def ask(self, key, version, body, *, instead=(b"", b"")):
        """Return the answer, or CLOSED, or SILENT. `instead`: bytes of it, and what is sent in their place."""
        frame = self._frame(key, version, body)
        before, after = instead
        assert not before or frame.count(before) == 1, f"{before!r} comes {frame.count(before)} times"
        answer = self.send(frame.replace(before, after, 1) if before else frame)
        return answer if answer in (CLOSED, SILENT) else apis.decode_response(key, version, memoryview(answer))[1]

    def ask_and_go(self, key, version, body):
        """Send a request on a connection of its own, which is closed at once."""
        frame = self._frame(key, version, body)
        with socket.create_connection(self._address, timeout=self._patience_s) as made:
            made.sendall(struct.pack(">i", len(frame)) + frame)

    def _frame(self, key, version, body):
        if not isinstance(body, tuple):
            body = build(apis.request_class(key, version), body)
        self._sent += 1
        return b"".join(map(bytes, apis.encode_request(key, version, self._sent, "asker", body)))[4:]

    def send(self, frame):
        """Send a request as it is; return the answer, or CLOSED, or SILENT."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._patience_s, self._source)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            if size := self._read(4):
                return self._read(*struct.unpack(">i", size))
        except ConnectionError:
            pass
        except TimeoutError:
            self.close()
            return SILENT
        self.close()
        return CLOSED

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                return b""
            data += piece
        return bytes(data)


def fetch_request(topic, *partitions, isolation=0, topic_id=None, **options):
    """A consumer's Fetch of one topic, which waits for nothing."""
    rows = partitions or (FetchPartition(0, 0, 1 << 20),)
    return FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation": isolation, **options},
        topics=(FetchTopic(topic, topic_id, rows),),
    )
