"""Families: metrics in Prometheus' text form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from replication.broker.metric_help import HELP

LABEL_CHARS_MAX = 249  # the longest name of a topic

Labels: TypeAlias = Mapping[str, object]


class Family(NamedTuple):
    """One metric: its samples, each with a suffix of its name and its labels."""

    name: str
    kind: str
    samples: list[tuple[str, Labels, float]]


def gauge(name: str, *samples: tuple[Labels, float]) -> Family:
    return Family(name, "gauge", [("", labels, value) for labels, value in samples])


def counter(name: str, *samples: tuple[Labels, float]) -> Family:
    return Family(f"{name}_total", "counter", [("", labels, value) for labels, value in samples])


def text(families: Iterable[Family], helps: Mapping[str, str] = HELP) -> str:
    """Return the page; `helps` says what each metric is."""
    lines = []
    for family in families:
        if family.samples:
            lines += [f"# HELP {family.name} {helps[family.name]}", f"# TYPE {family.name} {family.kind}"]
            lines += [f"{family.name}{end}{_labels(labels)} {value:.15g}" for end, labels, value in family.samples]
    return "\n".join([*lines, ""])


def _labels(labels: Labels) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = (f'{key}="{_short(str(value)).translate(escapes)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}" if labels else ""


def _short(value: str) -> str:
    """Names of groups are whatever clients say: shorten a long one to end with its hash."""
    if len(value) <= LABEL_CHARS_MAX:
        return value
    return f"{value[: LABEL_CHARS_MAX - 17]}~{hashlib.sha256(value.encode()).hexdigest()[:16]}"
