"""What Spark's Python processes spare the garbage collector.

Spark collects after every task, every plan and every look at a source. What a process has imported lives as long as it
does, and to look at that again takes 20 to 40 ms of a core; a task may take 300.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def exempt_loaded(by: str) -> None:
    """Exempt all objects that there are from garbage collection, once in a process for each `by`.

    Call it when a kind of work has loaded what it needs. Garbage of that moment stays, too: therefore only once.
    """
    gc.freeze()
