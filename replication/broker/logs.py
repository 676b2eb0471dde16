"""The text logs of a broker, in Kafka's form: server.log, controller.log, state-change.log.

Invisible characters are escaped, and lines about one client are limited (`replication.broker.log_lines`). The lines
of one turn of the event loop are written at once. A file that has grown to FILE_BYTES_MAX is renamed to `.1`.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import sys
from pathlib import Path

from logstore.checkpoint import make_directory
from logstore.env import SYSTEM, Env
from logstore.store.log_dir import SERVER_LOG
from replication.broker.log_lines import LineFormatter, PerClient, one_line
from replication.model.state_changes import StateChange, format_line

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 64 * 1024 * 1024
STATE_CHANGES = "state-change.log"
CONTROLLER_LOGGERS = (
    "replication.controller.driver",
    "replication.controller.tree_writer",
    "replication.controller.channels",
    "replication.controller.watches",
)


class StateChangeLog:
    def __init__(self, directory: Path, env: Env) -> None:
        self._path = directory / STATE_CHANGES
        self._clock = env.clock
        self._lines: list[str] = []
        env.files.mkdir(directory)

    def write(self, change: StateChange) -> None:
        """Write a line with the present time, by the end of this turn."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(one_line(format_line(self._clock.now_ms(), change)))

    def flush(self) -> None:
        """Write the lines that wait. A full disk loses lines, and nothing else."""
        text = "".join(f"{line}\n" for line in self._lines)
        self._lines.clear()
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
                size = file.tell()
            if size > FILE_BYTES_MAX:
                self._path.replace(self._path.with_name(STATE_CHANGES + ".1"))
        except OSError as error:
            logger.warning("path=%s lost lines: %s", self._path, error)


def begin_logging(directory: Path) -> None:
    """Send the log of this process to server.log, and that of its controller to controller.log."""
    make_directory(SYSTEM, directory)
    logging.Formatter.default_msec_format = "%s,%03d"
    server = _file(directory / SERVER_LOG)
    server.addFilter(PerClient())
    root = logging.getLogger()
    root.addHandler(server)
    root.setLevel(logging.INFO)
    controller = _file(directory / "controller.log")
    for name in CONTROLLER_LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(controller)
        logger.propagate = False


class _File(logging.handlers.RotatingFileHandler):
    """A file of lines. A full disk loses lines, without a traceback per line on stderr."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def _file(path: Path) -> logging.Handler:
    handler = _File(path, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(LineFormatter("[%(asctime)s] %(levelname)s %(message)s (%(name)s)"))
    return handler
