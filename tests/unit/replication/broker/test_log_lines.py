"""A log stays text, of one line per record, and of few lines per client."""

import asyncio
import logging

import pytest

from logstore.env import SYSTEM
from replication.broker.log_lines import CLIENTS_MAX, LINES_MAX, LineFormatter, PerClient, one_line
from replication.broker.logs import STATE_CHANGES, StateChangeLog
from replication.model.state_changes import StateChange

HOSTILE = "g\0\n[2026-01-01 00:00:00,000] INFO nothing\x1b[2J\x7f\x85\u2028\u202eé"
HARMLESS = r"g\x00\n[2026-01-01 00:00:00,000] INFO nothing\x1b[2J\x7f\x85\u2028\u202e" + "é"


@pytest.fixture
def log():
    """A logger, and what its handler has written."""

    class Kept(logging.Handler):
        def __init__(self):
            super().__init__()
            self.lines = []

        def emit(self, record):
            self.lines.append(self.format(record))

    kept = Kept()
    kept.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("replication.broker.log_lines")
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield logger, kept
    logger.removeHandler(kept)
    logger.setLevel(logging.NOTSET)


def test_what_cannot_be_seen_is_escaped(log):
    logger, kept = log
    logger.info("group=%s", HOSTILE)
    assert kept.lines == [f"INFO group={HARMLESS}"]
    assert one_line("größe=1\t") == r"größe=1\t"
    # Not logged here: pytest-xdist cannot send half a surrogate pair.
    assert one_line("\ud800") == r"\ud800"


def test_a_traceback_keeps_its_lines_and_nothing_else_that_cannot_be_seen(log):
    logger, kept = log
    try:
        raise ValueError("a\0b")
    except ValueError:
        logger.exception("it failed\n")
    (line,) = kept.lines
    assert line.startswith("ERROR it failed\\n\nTraceback")
    assert line.endswith(r"ValueError: a\x00b")


def test_lines_of_state_change_log_are_escaped(tmp_path):
    async def write():
        StateChangeLog(tmp_path, SYSTEM).write(StateChange("TRACE", HOSTILE))
        await asyncio.sleep(0)

    asyncio.run(write())
    text = (tmp_path / STATE_CHANGES).read_text(encoding="utf-8")
    assert HARMLESS in text
    assert text.count("\n") == 1


def test_of_many_lines_about_a_client_few_are_written_and_the_rest_is_counted(log):
    logger, kept = log
    kept.addFilter(PerClient(window_s=0.2))

    async def flood():
        for number in range(50):
            logger.warning("client=%s connection closed: %d", "1.2.3.4", number)
            logger.warning("broker=%d cannot be reached", number)
        logger.error("client=%s failed", "1.2.3.4")
        logger.warning("client=%s connection closed: %d", "5.6.7.8", 0)
        while "dropped" not in kept.lines[-1]:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(flood(), 10))
    assert sum("client=1.2.3.4 connection" in line for line in kept.lines) == LINES_MAX
    assert "ERROR client=1.2.3.4 failed" in kept.lines
    assert sum("broker=" in line for line in kept.lines) == 50
    assert kept.lines[-2:] == [
        "WARNING client=5.6.7.8 connection closed: 0",
        f"WARNING dropped {50 - LINES_MAX} more WARNING lines about client=1.2.3.4",
    ]


def test_many_clients_do_not_help(log):
    logger, kept = log
    kept.addFilter(PerClient())
    for number in range(10 * CLIENTS_MAX):
        logger.warning("client=%s connection closed", number)
    assert len(kept.lines) == CLIENTS_MAX + LINES_MAX
