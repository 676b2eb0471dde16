"""A curve: what a measure gives for each size of what grows; and how curves are kept, and drawn."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BEGAN_S = time.perf_counter()


def say(*words: object) -> None:
    """Tell how far it is: a full curve takes minutes."""
    print(f"{time.perf_counter() - BEGAN_S:6.1f} s ", *words, file=sys.stderr, flush=True)


class Curve(NamedTuple):
    """The size that grows, the measured value, its unit, (size, value) of each point, and the bound of the growth.

    A `goal` that is a number bounds the growth; "< 3 s" bounds each value; "> 0.6 of 10" is a share of the value at 10.
    """

    grows: str
    what: str
    unit: str
    points: Sequence[tuple[int, float]]
    goal: str

    @property
    def growth(self) -> float:
        return self.points[-1][1] / self.points[0][1] if self.points[0][1] else math.nan

    @property
    def limit(self) -> float | None:
        """The value that the goal bounds; None if there is no goal."""
        if (share := re.match(r"> ([\d.]+) of ([\d,]+)", self.goal)) is not None:
            of = int(share[2].replace(",", ""))
            return next((float(share[1]) * value for size, value in self.points if size == of), None)
        number = re.match(r"(< )?([\d.]+)", self.goal)
        if number is None:
            return None
        return float(number[2]) * (1 if number[1] else self.points[0][1])


def merge(curves: Sequence[Curve], file: Path) -> list[Curve]:
    """Put these in the place of those that the file has of the same; return all of it."""
    known = [Curve(*each) for each in json.loads(file.read_text())] if file.exists() else []
    found = {(curve.grows, curve.what): curve for curve in (*known, *curves)}
    file.write_text(json.dumps(list(found.values()), indent=1) + "\n")
    return list(found.values())


def plot(curves: Sequence[Curve], file: Path) -> None:
    """Draw a panel for each curve of more than one point, with its goal."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    drawn = [curve for curve in curves if len(curve.points) > 1]
    columns = min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pylog", "font.size": 9}):
        figure = Figure(figsize=(3.6 * columns, 2.7 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for curve, axes in zip(drawn, panels, strict=False):
            sizes, values = zip(*curve.points, strict=True)
            axes.plot(sizes, values, marker="o", label="measured")
            if curve.limit is not None:
                axes.axhline(curve.limit, color="tab:red", linestyle="--", label=f"goal: {goal_of(curve)}")
                axes.legend(fontsize=7, loc="best")
            axes.set_xscale("log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axes.set_ylim(0, 1.15 * max(*values, curve.limit or 0))
            axes.set(title=curve.what, xlabel=curve.grows, ylabel=curve.unit)
            axes.grid(alpha=0.3)
        for axes in panels[len(drawn) :]:
            axes.remove()
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def goal_of(curve: Curve) -> str:
    return f"{curve.goal} times the first" if curve.goal[:1].isdigit() else curve.goal
