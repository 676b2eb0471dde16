"""kio's class of a request in one version as a class of `requests`, which has the fields of all versions."""

from __future__ import annotations

from copy import copy
from dataclasses import Field, fields
from functools import cache
from types import GenericAlias
from typing import Any, get_origin

from replication.protocol import requests
from replication.protocol.kio_pieces import item_class


@cache
def completed(cls: Any) -> Any:
    """Return a subclass of `cls` with the same fields; what its version lacks is read as the default in `requests`."""
    made: Any = type(cls.__name__, (cls, getattr(requests, cls.__name__)), {"__slots__": ()})
    made.__dataclass_fields__ = {field.name: _of_completed(field) for field in fields(cls)}
    return made


def _of_completed(field: Field[Any]) -> Field[Any]:
    """Return the field with rows of a completed class, if it is an array of rows."""
    item = item_class(field)
    if item is None:
        return field
    rows, made = GenericAlias(tuple, (completed(item), ...)), copy(field)
    made.type = rows if get_origin(field.type) is tuple else rows | None
    return made
