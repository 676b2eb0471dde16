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

    def finished(self, counters: int) -> Code:
        """Return the program, of runs with so many counters."""
        words: list[Word] = [word for instruction in self._words for word in instruction]
        for at, targets in self._tables:
            words[WORDS * at + 2] = Ref("at", len(words))
            words += [Ref("at", WORDS * target) for target in targets]
        first = {"at": 0, "counter": len(words), "place": len(words) + 2 * counters + 1}
        found: dict[str, list[tuple[int, int]]] = {"own": []}
        memory = np.zeros(first["place"] + self.places, np.int64)
        for position, word in enumerate(words):
            if not isinstance(word, Ref):
                memory[position] = word
            elif word.kind in first:
                memory[position] = 8 * (first[word.kind] + word.number)
                found["own"].append((position, 0))
            else:
                found.setdefault(word.kind, []).append((position, word.number))
        refs = {kind: np.array(pairs, np.int64).reshape(-1, 2).T.copy() for kind, pairs in found.items()}
        return Code(memory, refs, len(words), counters)


class Code(NamedTuple):
    """A finished program: the memory that a run begins with, and its words that are known only then, by their kinds.

    Words of the kind "own" are places in this memory: the program, counters, a copy of these, a count, and the places.
    """

    memory: np.ndarray
    refs: dict[str, np.ndarray]
    words: int
    counters: int


class Run:
    """The memory of one run of a program, which nobody shares."""

    def __init__(self, code: Code) -> None:
        self._memory, self._refs = code.memory.copy(), code.refs
        self.program = int(self._memory.ctypes.data)
        self._memory[code.refs["own"][0]] += self.program
        self.counters = self._memory[code.words : code.words + code.counters]
        self.counters_at = self.program + 8 * code.words
        self.saved_at = self.counters_at + 8 * code.counters
        self.empty_at = self.saved_at + 8 * code.counters

    def fill(self, kind: str, table: np.ndarray) -> None:
        """Let each word of this kind be the entry of its number."""
        if kind in self._refs:
            at, numbers = self._refs[kind]
            self._memory[at] = table[numbers]


def halves(number: int) -> tuple[int, int]:
    """Return the low and the high half of a number of 128 bits, as int64."""
    low = number & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low, number >> 64
