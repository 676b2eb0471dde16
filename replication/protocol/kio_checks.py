"""Checks of messages before kio decodes them: lengths beyond their bytes are refused.

kio's native reader allocates memory by the length field of an array: five bytes can ask for 2^35 items, and abort the
process. It also fails at an unknown tagged field, which the protocol says to skip. So a message is walked first, by
the fields that kio declares: `checked` returns bytes that are safe for kio.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from typing import Any, TypeAlias, get_args, get_origin

from replication.errors import ProtocolError
from replication.protocol.wire import (
    COMPACT,
    ITEMS_MAX,
    LEGACY,
    Buffer,
    Form,
    check_items,
    count_of_tags,
    cut,
    put_uvarint,
    uvarint,
)


class Notes:
    """The items seen in one message, and the changes to make for kio."""

    __slots__ = ("changes", "items", "items_max")

    def __init__(self, items_max: int) -> None:
        self.items = 0
        self.items_max = items_max
        # Each: where the piece begins, where it ends, and its replacement.
        self.changes: list[tuple[int, int, bytes]] = []

    def count(self, items: int) -> None:
        self.items += items
        check_items(self.items, self.items_max)


# Walks over one value and returns where it ends.
Step: TypeAlias = Callable[[Buffer, int, Notes], int]

_FIXED_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float64": 8, "uuid": 16, "error_code": 2, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip


def checked(cls: Any, buffer: Buffer, at: int, items_max: int = ITEMS_MAX) -> bytes:
    """Return the message of class `cls` at `at` for kio's reader: read-only, without unknown tags.

    Raises: TooManyItemsError: its arrays have more than `items_max` items together; ProtocolError, or one of
    `wire.MALFORMED`: not such a message.
    """
    notes = Notes(items_max)
    end = _walk(cls)[0](buffer, at, notes)
    if end > len(buffer):
        raise struct.error(f"{end - len(buffer)} bytes are missing")
    if not notes.changes:
        return bytes(buffer[at:end])
    parts: list[bytes] = []
    for begin, stop, instead in sorted(notes.changes):
        parts += (bytes(buffer[at:begin]), instead)
        at = stop
    return b"".join((*parts, bytes(buffer[at:end])))


@cache
def _walk(cls: Any) -> tuple[Step, int]:
    """Return the step over a message or a nested struct, and its minimum size in bytes."""
    form = COMPACT if cls.__flexible__ else LEGACY
    steps: list[Step] = []
    least_bytes = skipped_bytes = 0
    tagged = {}
    for field in fields(cls):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _field_step(field, form, is_tagged=True)[0]
            continue
        step, field_bytes, is_fixed = _field_step(field, form, is_tagged=False)
        least_bytes += field_bytes
        if is_fixed:
            skipped_bytes += field_bytes
            continue
        if skipped_bytes:
            steps.append(_skip(skipped_bytes))
            skipped_bytes = 0
        steps.append(step)
    if skipped_bytes:
        steps.append(_skip(skipped_bytes))
    if cls.__flexible__:
        steps.append(_tag_section(tagged))
        least_bytes += 1
    return _in_turn(steps), least_bytes


def _field_step(field: Field[Any], form: Form, *, is_tagged: bool) -> tuple[Step, int, bool]:
    """Return (the step over a field, its minimum size, whether that is its fixed size)."""
    kind, is_optional = _without_none(field.type)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        step, item_bytes, _ = _item_step(item, field, form)
        return _array(form, step, item_bytes, is_nullable=is_optional), 1 if form is COMPACT else 4, False
    if is_optional and not is_tagged and "kafka_type" not in field.metadata:
        step, _, _ = _item_step(kind, field, form)
        return _nullable_struct(step), 1, False
    return _item_step(kind, field, form)


def _item_step(kind: Any, field: Field[Any], form: Form) -> tuple[Step, int, bool]:
    name = field.metadata.get("kafka_type")
    if name is None:
        return *_walk(kind), False
    if name in _FIXED_BYTES:
        return _skip(_FIXED_BYTES[name]), _FIXED_BYTES[name], True
    if name == "string":
        return _string(form), 1 if form is COMPACT else 2, False
    return _blob(form), 1 if form is COMPACT else 4, False


def _without_none(kind: Any) -> tuple[Any, bool]:
    arguments = get_args(kind)
    if get_origin(kind) is tuple or type(None) not in arguments:
        return kind, False
    return next(argument for argument in arguments if argument is not type(None)), True


def _skip(size: int) -> Step:
    return lambda buffer, at, notes: at + size


def _in_turn(steps: list[Step]) -> Step:
    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        for step in steps:
            at = step(buffer, at, notes)
        return at

    return walk


def _string(form: Form) -> Step:
    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        return form.nullable_string(buffer, at)[1]

    return walk


def _blob(form: Form) -> Step:
    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        return form.nullable_bytes(buffer, at)[1]

    return walk


def _array(form: Form, item: Step, item_bytes: int, *, is_nullable: bool) -> Step:
    count_of = form.nullable_count if is_nullable else form.count  # kio takes null for any array

    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        count, at = count_of(buffer, at, item_bytes)
        notes.count(count or 0)
        for _ in range(count or 0):
            at = item(buffer, at, notes)
        return at

    return walk


def _nullable_struct(step: Step) -> Step:
    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        is_null = buffer[at] >= 0x80  # a signed byte: -1 for null
        return at + 1 if is_null else step(buffer, at + 1, notes)

    return walk


def _tag_section(known: dict[int, Step]) -> Step:
    def walk(buffer: Buffer, at: int, notes: Notes) -> int:
        begin = at
        count, at = count_of_tags(buffer, at)
        if count == 0:
            return at
        notes.count(count)
        first, kept = at, 0
        for _ in range(count):
            tag_at = at
            tag, at = uvarint(buffer, at)
            size, at = uvarint(buffer, at)
            content, end = cut(buffer, at, size)
            if tag in known:
                _walk_tag(known[tag], content, notes)
                kept += 1
            else:
                notes.changes.append((tag_at, end, b""))
            at = end
        if kept < count:
            notes.changes.append((begin, first, put_uvarint(kept)))
        return at

    return walk


def _walk_tag(step: Step, content: Buffer, notes: Notes) -> None:
    """Check that a known tag's content has its size; unknown tags inside it cannot be removed."""
    inner = Notes(notes.items_max - notes.items)
    if step(content, 0, inner) != len(content) or inner.changes:
        raise ProtocolError("a tagged field is not of its type")
    notes.count(inner.items)
