"""An error of pylog reaches Spark's user as one line, in any session; its traceback goes to the log, if there is one.

Spark's Python processes send an exception to Java as text, with the traceback unless SPARK_HIDE_TRACEBACK is set. A
session sets the variable only for `spark.sql.execution.pyspark.udf.hideTraceback.enabled`. A process that has sent an
exception ends, so the variable hides the traceback of this one error only, and none of a user's function.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar, cast

from datasource.connector.sail import in_sail
from logstore import PylogError

HIDE = "SPARK_HIDE_TRACEBACK"  # what pyspark.util looks at when it sends an exception

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Let an error of this method, which Spark calls, be one line for the user."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from method(*args, **kwargs)
            except PylogError as error:
                raise _shown(error)  # noqa: B904 - it is the same error

        return cast("Callable[P, R]", generate)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except PylogError as error:
            raise _shown(error)  # noqa: B904 - it is the same error

    return call


def _shown(error: PylogError) -> PylogError:
    """Return the error as it is to reach the user."""
    if _is_process_of_spark():
        os.environ[HIDE] = "1"
    elif not in_sail():
        return error
    if logger.hasHandlers():  # Python's last resort is the terminal, where the one line is to be found
        logger.warning("%s: %s", type(error).__name__, error, exc_info=error)
    # Sail appends the traceback whatever it is told: that of two lines which begins here.
    return error.with_traceback(None) if in_sail() else error


def _is_process_of_spark() -> bool:
    """Whether Spark started this process for its own work: any other goes on after an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
