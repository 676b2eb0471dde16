"""Frozen states and their changes: `thaw` copies a state into a working object, `freeze` makes the next state of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

State = TypeVar("State")


def thaw(state: Any, into: object, *, shared: Collection[str] = ()) -> None:
    """Set every field of `state` on `into`: a dict for a mapping, a set for a frozenset, other values unchanged.

    The fields in `shared` are not copied: replace them, and never change them in place.
    """
    own: Any = type(state)
    names, values_of = _fields_of(own)
    working = into.__dict__
    for name, value in zip(names, values_of(state), strict=True):
        kind: Any = type(value)
        copy = None if name in shared else _copier(kind)
        working[name] = value if copy is None else copy(value)


def freeze(kind: type[State], source: object, **others: Any) -> State:
    """Return a `kind` with the fields of `source`, but for `others`; sets become frozensets."""
    own: Any = kind
    working = source.__dict__
    values = {name: working[name] for name in _fields_of(own)[0] if name not in others}
    return kind(**{name: frozenset(v) if type(v) is set else v for name, v in values.items()}, **others)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of the fields of a state, and what returns their values."""
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)


@cache
def _copier(kind: Any) -> Callable[[Any], Any] | None:
    if issubclass(kind, Mapping):
        return dict
    return set if issubclass(kind, frozenset) else None
