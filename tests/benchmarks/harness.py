"""Fair ratios on a noisy machine: what is measured and its peers take turns, round after round.

A ratio is the median over rounds of peer time / own time, so 1.00 is as fast as the peer and more is faster.
The noise is the same formula for the peer against itself (`AGAIN`, run in the same rounds): what lies between
it and 1 says nothing.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROUNDS = 9
AGAIN = "again"  # the name of the peer's second run in each round

Work = Callable[[], object]


def interleave(
    works: Mapping[str, Work], *, rounds: int = ROUNDS, warmups: int = 1, cpu: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of every work in every round; each round runs all of them once, in turn.

    `cpu`: of CPU time, for what waits for nothing. A median of fewer than 7 rounds is luck.
    """
    for _ in range(warmups):
        for work in works.values():
            work()  # caches, compiled code, page tables
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(seconds_of(work, cpu=cpu))
    return seconds


def seconds_of(work: Work, *, cpu: bool = False) -> float:
    """Return how long one call takes, or how much CPU time; garbage is collected before."""
    clock = time.process_time if cpu else time.perf_counter
    gc.collect()
    start = clock()
    work()
    return clock() - start


def ratio(own: Sequence[float], peer: Sequence[float]) -> float:
    """Return how fast the own work is, in units of the peer: the median over rounds of peer / own."""
    return statistics.median(p / o for o, p in zip(own, peer, strict=True))


def against(
    ours: Work, peer: Work, *, rounds: int = ROUNDS, warmups: int = 1
) -> tuple[dict[str, list[float]], float, float]:
    """Return (seconds of 'ours', 'peer' and AGAIN, ratio of ours to the peer, noise of the peer)."""
    seconds = interleave({"ours": ours, "peer": peer, AGAIN: peer}, rounds=rounds, warmups=warmups)
    return seconds, ratio(seconds["ours"], seconds["peer"]), ratio(seconds[AGAIN], seconds["peer"])


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, floats with two digits, and the machine."""
    table = Table(title=title, caption=machine(), title_justify="left", caption_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=120).print(table)


def machine() -> str:
    """Return what the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    models = {line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")}
    cpu = ", ".join(sorted(models)) or platform.machine()
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} × {cpu}, {system}"
