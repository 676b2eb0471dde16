"""Writers: the producers whose transactions hold a partition, as their coordinator said, until the next marker.

Law: what was said before a marker of that transaction came counts no more; what was said of a later one does. A marker
that has a higher epoch than the batches that it ends says nothing of that epoch: the next transaction has it.

A transaction that has its epoch for itself begins at sequence number 0 in each partition. A new leader that gets its
second batch before its first refuses the second, so that the client sends both, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.log.producers.state import OpenTransaction
from logstore.records.marker import Marker
from replication.errors import ErrorCode

Waiter = Callable[[ErrorCode], None]


class Question:
    """A question to the coordinator about one epoch of a producer, and those that wait for its answer, in order."""

    __slots__ = ("is_void", "until_s", "waiters")

    def __init__(self) -> None:
        self.is_void = False  # a marker came since it was asked last: it must be asked again
        self.until_s = 0.0  # of the loop's time: no longer than this
        self.waiters: list[tuple[int, Waiter]] = []  # with the sequence numbers of their batches

    def wait(self, tell: Waiter, sequence: int = 0) -> None:
        """Have this one told, too. `sequence`: of its batch, where that must not come before number 0."""
        self.waiters.append((sequence, tell))

    @property
    def comes_late(self) -> bool:
        """Does it count whether the log has the beginning of the transaction?"""
        return bool(self.waiters) and self.waiters[0][0] > 0

    def judge(self, error: ErrorCode) -> ErrorCode:
        """Return what the coordinator's answer means: a yes that a marker has overtaken is to be asked for again."""
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.is_void and error is ErrorCode.NONE else error


class Writers:
    """The producers of one role as leader."""

    __slots__ = ("_epochs", "_questions")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}  # producer id -> epoch
        self._questions: dict[int, dict[int, Question]] = {}  # by producer id and epoch

    @property
    def asks(self) -> bool:
        """Is the coordinator asked about anybody?"""
        return bool(self._questions)

    def holds(self, producer_id: int, producer_epoch: int) -> bool:
        return self._epochs.get(producer_id) == producer_epoch

    def add(self, producer_id: int, producer_epoch: int) -> None:
        self._epochs[producer_id] = max(producer_epoch, self._epochs.get(producer_id, -1))

    def question(self, producer_id: int, producer_epoch: int) -> tuple[Question, bool]:
        """Return the question about this epoch, and whether it is a new one, which somebody has to ask."""
        questions = self._questions.setdefault(producer_id, {})
        known = questions.get(producer_epoch)
        if known is not None:
            return known, False
        made = questions[producer_epoch] = Question()
        return made, True

    def answered(self, producer_id: int, producer_epoch: int, error: ErrorCode, *, has_begun: bool = True) -> None:
        """Tell all who wait, in their order; nothing can come between them. No error: the producer may write here.

        `has_begun`: the log has the beginning of the transaction. Otherwise the batches before number 0 are refused.
        """
        questions = self._questions.get(producer_id, {})
        question = questions.pop(producer_epoch, None)
        if question is None:
            return
        if not questions:
            del self._questions[producer_id]
        for sequence, tell in question.waiters:
            has_begun = has_begun or sequence <= 0
            if error is not ErrorCode.NONE:
                tell(error)
            elif has_begun:
                self.add(producer_id, producer_epoch)
                tell(error)
            else:
                tell(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def end(self, marker: Marker) -> None:
        """Nobody writes any more in the transaction that this marker ends."""
        epoch = self._epochs.get(marker.producer_id)
        if epoch is not None and _ends(marker, epoch):
            del self._epochs[marker.producer_id]
        for asked, question in self._questions.get(marker.producer_id, {}).items():
            question.is_void = question.is_void or _ends(marker, asked)


def has_begun(opened: Iterable[OpenTransaction], producer_id: int, producer_epoch: int) -> bool:
    """Return whether a log with these open transactions has a batch of the producer's one of this epoch."""
    return any((each.producer_id, each.producer_epoch) == (producer_id, producer_epoch) for each in opened)


def _ends(marker: Marker, producer_epoch: int) -> bool:
    return producer_epoch < marker.producer_epoch + (not marker.is_above)
