"""The writes of groups that are stored in parts, and the answer to a heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replication.coordinators.groups.keys import Key
from replication.coordinators.groups.messages import Append, Body, Write
from replication.coordinators.groups.pieces import Pieces
from replication.errors import NONE, ErrorCode


@dataclass(frozen=True, slots=True)
class PartsChange(Write):
    """The state of a group; `number` counts these writes."""

    number: int


@dataclass(frozen=True, slots=True)
class AppendParts(Append):
    """Store these values by their keys; None: the record is deleted."""

    values: Mapping[Key, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(Body):
    """Answers a heartbeat. `assigned`: what the member may read now; None: as before."""

    error: ErrorCode = NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Pieces | None = None
