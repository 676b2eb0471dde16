"""Exempt the loaded modules of Spark's Python processes from garbage collection.

Spark collects after every task, every plan and every look at a source. Imported modules live as long as their process,
and each collection of them takes 20 to 40 ms of a core; a task may take 300.
"""

from __future__ import annotations

import functools
import gc

from datasource.connector.sail import in_sail


@functools.cache
def exempt_loaded(by: str) -> None:
    """Exempt all objects that there are from garbage collection, once in a process for each `by`.

    Call it when a kind of work has loaded what it needs. Garbage of that moment stays, too: therefore only once, and
    not in Sail, which collects nothing by itself, and may work in a program of the user's.
    """
    if not in_sail():
        gc.freeze()
