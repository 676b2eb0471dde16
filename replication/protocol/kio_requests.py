"""kio's class of a request in one version as a class of `requests`, which has the fields of all versions."""

from __future__ import annotations

from copy import copy
from dataclasses import Field, fields
from functools import cache
from types import GenericAlias
from typing import Any, get_args

from replication.protocol import requests
from replication.protocol.kio_pieces import item_class, struct_class


@cache
def completed(cls: Any) -> Any:
    """Return a subclass of `cls` with the same fields; what its version lacks is read as the default in `requests`."""
    made: Any = type(cls.__name__, (cls, getattr(requests, cls.__name__)), {"__slots__": ()})
    made.__dataclass_fields__ = {field.name: _of_completed(field) for field in fields(cls)}
    return made


def _of_completed(field: Field[Any]) -> Field[Any]:
    """Return the field with a completed class, if it is a struct or an array of them."""
    item = struct_class(field)
    if item is None:
        return field
    is_array, is_nullable = item_class(field) is not None, type(None) in get_args(field.type)
    made, kind = copy(field), GenericAlias(tuple, (completed(item), ...)) if is_array else completed(item)
    made.type = kind | None if is_nullable else kind
    return made
