"""Damage: what may happen to the bytes of a file, drawn from a seed. One call is one place in one file."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[bytearray, random.Random, bytes], None]

LONG_MAX = 200


def flip_a_bit(data: bytearray, rng: random.Random, other: bytes) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def change_a_byte(data: bytearray, rng: random.Random, other: bytes) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def overwrite(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data) + 1)
    size = min(rng.randrange(1, LONG_MAX), len(data) - at)
    data[at : at + size] = rng.randbytes(size)


def zero(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data) + 1)
    size = min(rng.randrange(1, LONG_MAX), len(data) - at)
    data[at : at + size] = bytes(size)


def cut(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[rng.randrange(len(data) + 1) :]


def lose_a_piece(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.randrange(1, LONG_MAX)]


def repeat_a_piece(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data) + 1)
    piece = data[at : at + rng.randrange(1, LONG_MAX)]
    data[at:at] = piece


def grow(data: bytearray, rng: random.Random, other: bytes) -> None:
    data += rng.randbytes(rng.randrange(1, LONG_MAX)) if rng.random() < 0.5 else bytes(rng.randrange(1, LONG_MAX))


def be_another_file(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[:] = other


KINDS: tuple[Damage, ...] = (
    flip_a_bit,
    flip_a_bit,
    flip_a_bit,
    change_a_byte,
    change_a_byte,
    overwrite,
    zero,
    cut,
    lose_a_piece,
    repeat_a_piece,
    grow,
    be_another_file,
)
