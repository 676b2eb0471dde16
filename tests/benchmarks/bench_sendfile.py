"""The saving of a broker by sendfile: the CPU of handing a file to a consumer over loopback.

python tests/benchmarks/bench_sendfile.py [--megabytes 512] [--rounds 5] [--path DIR]

The sender is a process of its own, its file is in the page cache, and pieces have 1 MiB, as fetches do. *copied*: read
into one buffer and sent from it, as brokers do; *sendfile*: the kernel sends the file's pages. The receiver uses the
other core. A socket's send buffer is the system's choice (pylog's default), what Kafka's brokers ask for, or larger.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
from collections.abc import Callable

from harness import AGAIN, ratio, show

PIECE_BYTES = 1 << 20
BUFFERS = (0, 102_400, 1 << 20)  # 0: as the system chooses


def copied(file: int, to: socket.socket, size: int) -> None:
    piece = bytearray(PIECE_BYTES)
    for at in range(0, size, PIECE_BYTES):
        os.preadv(file, [piece], at)
        to.sendall(piece)


def sent(file: int, to: socket.socket, size: int) -> None:
    at = 0
    while at < size:
        at += os.sendfile(to.fileno(), file, at, min(PIECE_BYTES, size - at))


def cpu_s(send: Callable[[int, socket.socket, int], None], path: str, size: int, buffer_bytes: int) -> float:
    """The CPU seconds of the sending process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        child = os.fork()
        if not child:
            with socket.socket() as to:
                if buffer_bytes:
                    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
                to.connect(listening.getsockname())
                send(os.open(path, os.O_RDONLY), to, size)
            os._exit(0)
        connection, _ = listening.accept()
        with connection:
            room, left = bytearray(256 * 1024), size
            while left:
                left -= connection.recv_into(room)
        _, status, used = os.wait4(child, 0)
        assert status == 0
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a row for each size of the send buffer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    asked = parser.parse_args()
    size, rows = asked.megabytes * PIECE_BYTES, []
    with tempfile.NamedTemporaryFile(dir=asked.path, prefix="pylog-bench-") as file:
        for _ in range(asked.megabytes):
            file.write(os.urandom(PIECE_BYTES))
        file.flush()
        for buffer_bytes in BUFFERS:
            found: dict[str, list[float]] = {"copied": [], "sendfile": [], AGAIN: []}
            for number in range(asked.rounds + 1):
                for name, values in found.items():
                    spent = cpu_s(sent if name == "sendfile" else copied, file.name, size, buffer_bytes)
                    if number:  # the first warms up
                        values.append(1000 * spent / asked.megabytes)
            cells = [round(statistics.median(found[name]), 3) for name in ("copied", "sendfile")]
            peer = found["copied"]
            rows.append([buffer_bytes or "system's", *cells, ratio(found["sendfile"], peer), ratio(found[AGAIN], peer)])
    columns = ["SO_SNDBUF", "copied, ms of CPU per MiB", "sendfile", "ratio", "noise"]
    show("Handing a file to a consumer", columns, rows)


if __name__ == "__main__":
    main()
