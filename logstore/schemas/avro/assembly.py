"""Programs for the kernels: instructions of eight int64, with words that are known only when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WORDS = 8


class Ref(NamedTuple):
    """A word that is an address, or a size: of a counter, a buffer, and so on (`kind`), the one of this number.

    The kind "at" is an instruction or a table of the program itself, by the number of its word.
    """

    kind: str
    number: int


Word = int | Ref


class Program:
    """Instructions, and of each the path of its field and, where it has one, the reason for which it fails."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.reasons: dict[int, str] = {}
        self.places = 0  # blocks that may be open at once have a place each to count in
        self._words: list[list[Word]] = []
        self._tables: list[tuple[int, list[int]]] = []  # an instruction, and where its branches begin
        self._kept: list[np.ndarray] = []

    @property
    def next(self) -> int:
        return len(self._words)

    def add(self, path: str, *words: Word) -> int:
        self._words.append([*words, *[0] * (WORDS - len(words))])
        self.paths.append(path)
        return self.next - 1

    def aim(self, at: int, word: int, target: int) -> None:
        """Let a word of the instruction be where another one is."""
        self._words[at][word] = Ref("at", WORDS * target)

    def branches(self, at: int, targets: list[int]) -> None:
        self._tables.append((at, targets))

    def keep(self, data: np.ndarray) -> int:
        """Return the address of data that lives as long as the program."""
        self._kept.append(data)
        return int(data.ctypes.data)

    def place(self) -> Ref:
        """Return a new place to count in."""
        self.places += 1
        return Ref("place", self.places - 1)

    def finished(self) -> Code:
        words: list[Word] = [word for instruction in self._words for word in instruction]
        for at, targets in self._tables:
            words[WORDS * at + 2] = Ref("at", len(words))
            words += [Ref("at", WORDS * target) for target in targets]
        found: dict[str, tuple[list[int], list[int]]] = {}
        for position, word in enumerate(words):
            if isinstance(word, Ref):
                positions, numbers = found.setdefault(word.kind, ([], []))
                positions.append(position)
                numbers.append(word.number)
        refs = {kind: (np.array(at), np.array(numbers)) for kind, (at, numbers) in found.items()}
        plain = [0 if isinstance(word, Ref) else word for word in words]
        return Code(np.array(plain, np.int64), refs)


class Code:
    """A finished program; its words are those of one run once they are filled in."""

    def __init__(self, words: np.ndarray, refs: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self._words, self._refs = words, refs

    @property
    def address(self) -> int:
        return int(self._words.ctypes.data)

    def for_a_run(self) -> Code:
        """Return a copy, with the addresses of its own words."""
        found = Code(self._words.copy(), self._refs)
        found.fill("at", addresses(found._words))
        return found

    def fill(self, kind: str, table: np.ndarray) -> None:
        """Let each word of this kind be the entry of its number."""
        if kind in self._refs:
            at, numbers = self._refs[kind]
            self._words[at] = table[numbers]


def addresses(array: np.ndarray) -> np.ndarray:
    """Return the address of each item of an array of int64."""
    found: np.ndarray = array.ctypes.data + 8 * np.arange(len(array))
    return found


def halves(number: int) -> tuple[int, int]:
    """Return the low and the high half of a number of 128 bits, as int64."""
    low = number & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low, number >> 64
