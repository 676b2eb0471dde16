"""Answers through TLS: a bounded piece of them leaves in each turn of the event loop, and the rest is counted."""

import asyncio
import itertools

import pytest

from replication.network.admission import Admission, SocketServerSettings
from replication.network.outbox import PACE_BYTES, PacedOutbox


class Socket:
    """A transport that keeps what it is given, turn by turn."""

    def __init__(self):
        self.turns = [b""]

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.turns[-1] += data


@pytest.mark.parametrize("sizes", [(10 * PACE_BYTES,), (PACE_BYTES // 2, 3 * PACE_BYTES, 7, PACE_BYTES), (1,) * 3])
def test_a_turn_sends_a_piece_and_the_rest_is_counted(sizes):
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes, 1)]
    whole = b"".join(parts)

    async def main():
        admission, socket, gone = Admission(SocketServerSettings()), Socket(), asyncio.Event()
        admission.begin()
        outbox = PacedOutbox(admission, socket, gone.set)
        outbox.add(parts, is_last=True)
        for turn in itertools.count(1):
            left = whole[turn * PACE_BYTES :]
            assert b"".join(socket.turns) == whole[: turn * PACE_BYTES]
            assert admission.unsent_bytes == len(left)
            assert (outbox.may_write, outbox.has_all_gone) == (not left, not left)
            if not left:
                break
            socket.turns.append(b"")
            await asyncio.sleep(0)
        assert turn == -(-len(whole) // PACE_BYTES)
        if turn > 1:
            await gone.wait()
        admission.end()

    asyncio.run(main())
