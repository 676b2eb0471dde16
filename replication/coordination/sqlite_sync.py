"""Syncer: a thread that fsyncs changes before the calls that made or saw them are answered.

Its fsyncs hold no lock, and delay neither the beats of the session nor other calls. One fsync serves all waiting
calls.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from logstore.errors import StorageError


@dataclass(frozen=True, slots=True)
class Answer:
    """Call `give` once changes up to `number` are on disk, or `refuse` with the reason."""

    number: int
    give: Callable[[], None]
    refuse: Callable[[str], None]


class Syncer:
    """`sync` makes durable all that was written before; `failed` gets the reason when it could not.

    Answers are given in the order in which they came.
    """

    def __init__(self, sync: Callable[[], None], failed: Callable[[str], None], name: str) -> None:
        self._sync = sync
        self._failed = failed
        self._waiting: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._synced_number = -1
        self._giving = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def answer(self, answer: Answer) -> None:
        """Give the answer when its changes are on disk: at once, if they are."""
        with self._giving:
            if answer.number <= self._synced_number:
                answer.give()
            else:
                self._waiting.put(answer)

    def close(self) -> None:
        """Give every answer, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            answers = [self._waiting.get()]
            while not self._waiting.empty():
                answers.append(self._waiting.get())
            is_over = answers[-1] is None  # nothing comes after it
            self._answer_all([answer for answer in answers if answer is not None])

    def _answer_all(self, answers: list[Answer]) -> None:
        if not answers:
            return
        try:
            self._sync()
        except StorageError as error:
            self._failed(str(error))
            for answer in answers:
                answer.refuse(str(error))
            return
        for answer in answers:
            answer.give()
        # Last, so that no later answer overtakes these.
        self._synced_number = answers[-1].number
