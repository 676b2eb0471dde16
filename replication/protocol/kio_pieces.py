"""Writing of kio's messages item by item, for long ones.

kio's native writer processes a whole message without giving others a turn: 0.5 to 2 µs per item. Here every array of
structs is a Python loop, with kio's work for one item inside: `write` is a generator that its caller resumes at will.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

from kio.serial import entity_writer
from kio.serial._serialize import get_field_writer

from replication.errors import ProtocolError
from replication.protocol.kio_entities import build, converters
from replication.protocol.wire import COMPACT, LEGACY, Form, put_uvarint

Item = TypeVar("Item")

# Bytes of an answer. (The answer to a Fetch is not written here, and bounded by fetch.max.bytes.)
ANSWER_BYTES_MAX = 64 * 1024 * 1024
NO_TAGS = b"\x00"


def item_class(field: Field[Any]) -> Any | None:
    for kind in (field.type, *get_args(field.type)):
        if get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]):
            return get_args(kind)[0]
    return None


def struct_class(field: Field[Any]) -> Any | None:
    """Return the class of a field that is a struct, or rows of one."""
    single = (kind for kind in (field.type, *get_args(field.type)) if is_dataclass(kind))
    return item_class(field) or next(single, None)


class _Field(NamedTuple):
    """How a field is written. `item` is the class of its structs, if it is an array of them."""

    name: str
    convert: Callable[[Any], Any]
    default: Any
    put: Callable[[Any, Any], None]
    item: Any | None
    tag: int | None

    def value_of(self, values: Any) -> Any:
        if type(values) is not dict and not isinstance(values, Mapping):
            return getattr(values, self.name)
        if self.name in values:
            value = values[self.name]
            return value if self.item is not None and self.tag is None else self.convert(value)
        if self.default is MISSING:
            raise TypeError(f"{self.name} must be given")
        return self.default


class _Layout(NamedTuple):
    """How a struct is written: fields in their order, then tagged ones by their tags."""

    form: Form
    plain: tuple[_Field, ...]
    tagged: tuple[_Field, ...]


@cache
def _layout(cls: Any) -> _Layout:
    flexible, known = cls.__flexible__, converters(cls)
    plain: list[_Field] = []
    tagged: list[_Field] = []
    for field in fields(cls):
        tag = field.metadata.get("tag")
        put = get_field_writer(field, flexible=flexible, is_request_header=False, is_tag=tag is not None)
        made = _Field(field.name, *known[field.name], put, item_class(field), tag)
        (plain if tag is None else tagged).append(made)
    tagged.sort(key=lambda field: field.tag or 0)
    return _Layout(COMPACT if flexible else LEGACY, tuple(plain), tuple(tagged))


class Rows(Generic[Item]):
    """A known number of items, each made when it is written. They can be iterated once."""

    __slots__ = ("_items", "count")

    def __init__(self, count: int, items: Iterable[Item]) -> None:
        self.count = count
        self._items = items

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)


def write(cls: Any, values: Any, out: io.BytesIO) -> Iterator[None]:
    """Write a message into `out`; yield after every item of an array of structs.

    `values` are as for `build`: a mapping, or an entity. An array of structs may be any iterable: each item is
    requested when it is written, and released then.

    Raises: ProtocolError: it has more than ANSWER_BYTES_MAX.
    """
    layout = _layout(cls)
    for field in layout.plain:
        value = field.value_of(values)
        if field.item is None or value is None:
            field.put(out, value)
        else:
            yield from _write_items(layout.form, field.item, value, out)
    if layout.form is COMPACT:
        _write_tags(layout.tagged, values, out)


def _write_tags(tagged: Iterable[_Field], values: Any, out: io.BytesIO) -> None:
    found = [(field, field.value_of(values)) for field in tagged]
    shown = [(field, value) for field, value in found if value != field.default]
    out.write(put_uvarint(len(shown)))
    for field, value in shown:
        content = io.BytesIO()
        field.put(content, value)
        out.write(put_uvarint(field.tag or 0) + put_uvarint(content.tell()))
        out.write(content.getbuffer())


def _write_items(form: Form, item: Any, values: Iterable[Any], out: io.BytesIO) -> Iterator[None]:
    """Write an array. Its length comes first; if it is unknown, make room for it at the end."""
    begin, is_counted = out.tell(), isinstance(values, Sized)
    if is_counted:
        out.write(form.put_count(len(values)))  # type: ignore[arg-type]
    layout = _layout(item)
    is_nested = any(field.item is not None for field in layout.plain)
    count = 0
    for value in values:
        count += 1
        if is_nested:
            yield from write(item, value, out)
        elif type(value) is dict and not layout.tagged:
            for field in layout.plain:
                field.put(out, field.value_of(value))
            if form is COMPACT:
                out.write(NO_TAGS)
        else:
            entity_writer(item)(out, build(item, value) if isinstance(value, Mapping) else value)
        if out.tell() > ANSWER_BYTES_MAX:
            raise ProtocolError(f"the answer would have more than {ANSWER_BYTES_MAX} bytes: ask for less")
        yield
    if not is_counted:
        items = bytes(out.getbuffer()[begin:])
        out.seek(begin)
        out.write(form.put_count(count))
        out.write(items)
