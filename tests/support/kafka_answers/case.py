"""A case: a request, and what a broker says to it; the values that several of them share."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.asker import Asker

SAME = object()
NOT_ASKED = -(2**31)
METADATA_FLAGS = ("include_topic_authorized_operations", "include_cluster_authorized_operations")
NO_ID, AN_ID = uuid.UUID(int=0), uuid.UUID(int=9)
BATCH = 70  # the bytes of a batch of `t`
EVERYTHING = 1 << 20
CASES: list["Case"] = []


@dataclass(frozen=True)
class Case:
    name: str
    ask: Callable[[Asker], Any]
    ours: Any
    kafkas: Any  # the same, or something else

    @property
    def differs(self):
        return self.ours != self.kafkas


def case(name, ours, kafkas=SAME):
    def add(ask):
        CASES.append(Case(name, ask, ours, ours if kafkas is SAME else kafkas))
        return ask

    return add


def code(row):
    return row.error_code.value if hasattr(row.error_code, "value") else row.error_code


def codes(rows):
    return [code(row) for row in rows]
