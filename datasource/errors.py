"""Lost records as an error or a warning, and errors as one line of a report."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from logstore import PylogError

logger = logging.getLogger(__name__)


class DataLossError(PylogError):
    """Records that the query should have read are gone: which, and why."""


def reason(error: Exception) -> str:
    """Return the line for a report. An error that nobody foresaw is logged with its traceback."""
    if isinstance(error, PylogError | OSError):
        return str(error)
    logger.error("unforeseen error", exc_info=error)
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def report(losses: Iterable[str], *, fail: bool) -> None:
    """Raise for lost records, or log a warning if the user chose to go on without them.

    Raises: DataLossError.
    """
    lines = [line for line in losses if line]
    if not lines:
        return
    if fail:
        more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
        raise DataLossError(
            f"{'; '.join(lines[:3])}{more}. To read the rest, set the option failOnDataLoss=false",
            losses=lines,
        )
    for line in lines:
        logger.warning("data loss, failOnDataLoss=false: %s", line)
