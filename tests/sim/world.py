"""Virtual time, and a network between nodes that delays, drops, doubles and cuts: all from one seed.

A heap of timed events; ties in the order of their making. A node is anything with `id`, `life` (counts its
processes), `is_up` and `paused_until_ms`. What arrives at a node that is down is gone; at one that is paused, it
waits.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

RPC_TIMEOUT_MS = 250


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.drop = self.double = self.spike = 0.0
        self.cuts: set[tuple[Any, Any]] = set()  # (from, to): nothing passes
        self.notes: deque[str] = deque(maxlen=400)

    def note(self, text: str) -> None:
        """Something that a reader of a broken run wants to know."""
        self.notes.append(f"{self.now_ms:6d} {text}")

    # ------------------------------------------------------------------- time

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Have something happen later."""
        self.count += 1
        heapq.heappush(self.events, (self.now_ms + delay_ms, self.count, what))

    def run_until(self, end_ms: int, after_each: Callable[[], None]) -> None:
        """Let everything happen that is due before `end_ms`."""
        events, pop = self.events, heapq.heappop
        while events and events[0][0] < end_ms:
            self.now_ms, _, what = pop(events)
            what()
            after_each()
        self.now_ms = end_ms

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return probability > 0 and self.random.random() < probability

    # ------------------------------------------------------------------ nodes

    def at(self, node: Any, life: int, what: Callable[[], None]) -> None:
        """Do it in this life of the node; later, if it is paused; never, if that life is over."""
        if node.life != life or not node.is_up:
            return
        if node.paused_until_ms > self.now_ms:
            self.after(node.paused_until_ms - self.now_ms, lambda: self.at(node, life, what))
        else:
            node.guarded(what)

    def timer(self, node: Any, delay_ms: int, what: Callable[[], None]) -> None:
        """Have something happen later in this life of the node."""
        life = node.life
        self.after(delay_ms, lambda: self.at(node, life, what))

    # ---------------------------------------------------------------- network

    def send(self, source: Any, target: Any, what: Callable[[], None]) -> None:
        """A message: `what` happens at the target, if the network is so kind; in whatever life it then has."""
        if (source.id, target.id) in self.cuts or self.chance(self.drop):
            return
        for _ in range(2 if self.chance(self.double) else 1):
            self.after(self._delay_ms(), lambda: self.at(target, target.life, what))

    def _delay_ms(self) -> int:
        return self.random.randint(1, 600) if self.chance(self.spike) else self.random.randint(1, 6)

    def call(
        self,
        source: Any,
        target: Any,
        handle: Callable[[Callable[[Any], None]], None],
        answered: Callable[[Any], None],
        timeout_ms: int = RPC_TIMEOUT_MS,
    ) -> None:
        """A request: `handle(reply)` at the target; at the source `answered` once, with None if nothing came."""
        life, is_open = source.life, True

        def close(answer: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered(answer)

        def back(answer: Any) -> None:
            if (target.id, source.id) not in self.cuts and not self.chance(self.drop):
                self.after(self._delay_ms(), lambda: self.at(source, life, lambda: close(answer)))

        self.send(source, target, lambda: handle(back))
        self.after(timeout_ms, lambda: self.at(source, life, lambda: close(None)))
