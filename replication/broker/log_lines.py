"""Log lines about clients: limited in number, and without invisible characters.

Names of groups, clients and unknown topics come from clients. Their invisible characters are escaped in a line, so
that the file stays text and no name looks like another line. Lines about a client begin with `client=%s`: of each
client and level, LINES_MAX per window are written, and the number of dropped ones in one line at its end. Levels
count separately, so that foreseen lines hide no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter

logger = logging.getLogger(__name__)

ABOUT_CLIENT = "client=%s"
LINES_MAX = 10
WINDOW_S = 60.0
CLIENTS_MAX = 100  # counted separately within a window
OTHERS = "others"

# Control characters, line separators, changes of the writing direction, and lone surrogates.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_IN_TRACES = re.compile(_UNSEEN.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))


def one_line(text: str) -> str:
    """Return the text with its invisible characters escaped, as Python writes them."""
    return text if text.isprintable() else _UNSEEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class LineFormatter(logging.Formatter):
    """Formats every record as one line, and the traceback behind it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, which may hold messages of errors."""
        return _UNSEEN_IN_TRACES.sub(_escape, super().format(record))


class PerClient(logging.Filter):
    """Lets LINES_MAX lines about a client pass, per level and window. Belongs to one handler."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self._window_s = window_s
        self._begun_s = 0.0
        self._lines: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(ABOUT_CLIENT) or not isinstance(record.args, tuple):
            return True
        if not 0 <= record.created - self._begun_s < self._window_s:
            self.tell()
            self._begun_s = record.created
            with contextlib.suppress(RuntimeError):  # in another thread: the next line about a client tells
                asyncio.get_running_loop().call_later(self._window_s, self.tell)
        about = str(record.args[0]), record.levelname
        if about not in self._lines and len(self._lines) >= CLIENTS_MAX:
            about = OTHERS, record.levelname
        self._lines[about] += 1
        return self._lines[about] <= LINES_MAX

    def tell(self) -> None:
        lines, self._lines = self._lines, Counter()
        for (client, level), count in lines.items():
            if count > LINES_MAX:
                logger.warning("dropped %d more %s lines about client=%s", count - LINES_MAX, level, client)
