"""Frozen states and their changes: `thaw` copies a state into a working object, `freeze` makes the next state of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

State = TypeVar("State")


def thaw(state: Any, into: object, *, shared: Collection[str] = ()) -> None:
    """Set every field of `state` on `into`: a dict for a mapping, a set for a frozenset, other values unchanged.

    The fields in `shared` are not copied: replace them, and never change them in place.
    """
    for field in fields(state):
        value = getattr(state, field.name)
        if field.name not in shared:
            if isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, frozenset):
                value = set(value)
        setattr(into, field.name, value)


def freeze(kind: type[State], source: object, **others: Any) -> State:
    """Return a `kind` with the fields of `source`, but for `others`; sets become frozensets."""
    values = {field.name: getattr(source, field.name) for field in fields(kind) if field.name not in others}  # type: ignore[arg-type]
    return kind(**{k: frozenset(v) if isinstance(v, set) else v for k, v in values.items()}, **others)
