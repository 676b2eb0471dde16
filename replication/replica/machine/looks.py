"""Looks at `_schemas`: what becomes of a batch with schema ids that are not known there.

Law: it is refused for good only by a look that began after the batch came, and has seen the end of the topic.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Verdict(Enum):
    REFUSED = auto()
    NOT_KNOWN = auto()  # the topic cannot be read: the producer may come again
    HELD = auto()  # until another look is over


class Looks(NamedTuple):
    """The looks of a broker, numbered from 1: how many began, and the last that is over, and that saw the end."""

    begun: int = 0
    over: int = 0
    seen: int = 0

    def judge(self, held: int | None) -> Verdict:
        """Judge a batch that was held when so many looks had begun; None: it comes now."""
        if held is None:
            return Verdict.HELD
        if self.seen > held:
            return Verdict.REFUSED
        return Verdict.NOT_KNOWN if self.over > held else Verdict.HELD
