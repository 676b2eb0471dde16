"""The JSON objects in nodes: typed values read out of them, and unknown keys written back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from replication.coordination.tree import CoordinationError

_Value = TypeVar("_Value")


class MalformedNodeError(CoordinationError):
    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is malformed: {reason}; correct the node or delete it", path=path, reason=reason)


def with_unknown(value: dict[str, Any], former: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the value with all of `former` that this release does not know."""
    return {**value, **{key: found for key, found in former.items() if key not in known and key not in value}}


def decode_json(data: bytes | None) -> dict[str, Any]:
    """Return the JSON object in a node; an empty one for any other content."""
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def encode_json(value: dict[str, Any], former: bytes | None = None, known: frozenset[str] = frozenset()) -> bytes:
    if former is not None:
        value = with_unknown(value, decode_json(former), known)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class NodeReader:
    """Takes typed values out of a JSON object; an error names the node."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, data: Any) -> None:
        """`data`: JSON text, or a value out of one."""
        self.path = path
        try:
            self.value = json.loads(data) if isinstance(data, bytes) else data
        except (ValueError, RecursionError) as error:
            raise self.error(f"it is not JSON ({error})") from None
        if not isinstance(self.value, dict):
            raise self.error("it is not a JSON object")

    def error(self, reason: str) -> MalformedNodeError:
        return MalformedNodeError(self.path, reason)

    def typed(self, key: str, kind: type[_Value]) -> _Value:
        found = self.value.get(key)
        if type(found) is not kind:
            raise self.error(f"{key} must be a JSON {kind.__name__}, and is {found!r:.60}")
        return found

    def number(self, key: str) -> int:
        return self.typed(key, int)

    def text(self, key: str) -> str:
        return self.typed(key, str)

    def numbers(self, found: Any, what: str) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(number) is int for number in found):
            raise self.error(f"{what} must be a list of numbers, and is {found!r:.60}")
        return tuple(found)
