"""Messages of versions that kio does not know yet, in kio's form: its tools take the types of fields as objects.

Most are kio's newest class of the API with other fields. A class of kio's takes about 10 ms to load, once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache, partial
from types import GenericAlias, MappingProxyType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i16, i32

from replication.protocol.kio_pieces import item_class

_Made = tuple[str, Any, Any]  # the name of a field, its type, and the field
_CLASS_FIELDS = ("__type__", "__flexible__", "__api_key__", "__header_schema__")
_NONE: Mapping[str, _Made] = MappingProxyType({})


@cache
def request_schema(key: int, version: int) -> Any:
    """Return the class of a request."""
    make = _REQUESTS.get((key, version))
    return load_request_schema(key, version) if make is None else make(load_request_schema(key, version - 1), version)


@cache
def response_schema(key: int, version: int) -> Any:
    """Return the class of a response."""
    make = _RESPONSES.get((key, version))
    return load_response_schema(key, version) if make is None else make(load_response_schema(key, version - 1), version)


def _changed(cls: Any, version: int, *, replaced: Mapping[str, _Made] = _NONE, added: tuple[_Made, ...] = ()) -> Any:
    """Return a class as `cls`, but of this version, with other fields in the place of some, and with more."""
    kept = ((each.name, each.type, field(default=each.default, metadata=each.metadata)) for each in fields(cls))
    made = [*(replaced.get(one[0], one) for one in kept), *added]
    own = {name: getattr(cls, name) for name in _CLASS_FIELDS}
    namespace = {**own, "__version__": i16(version), "__module__": __name__}
    return make_dataclass(cls.__name__, made, namespace=namespace, frozen=True, slots=True, kw_only=True)


def _items_changed(name: str, cls: Any, version: int, **changes: Any) -> Any:
    """Return a class as `cls`, with such changes in the items of this array."""
    (array,) = (each for each in fields(cls) if each.name == name)
    item = _changed(item_class(array), version, **changes)
    return _changed(cls, version, replaced={name: (name, GenericAlias(tuple, (item, ...)), field())})


def _of(kafka_type: str, **default: Any) -> Any:
    return field(metadata={"kafka_type": kafka_type}, **default)


_BY_ID = partial(_items_changed, "topics", replaced={"name": ("topic_id", uuid.UUID | None, _of("uuid"))})
# Version 5 of ApiVersions (KIP-1242): which broker the client means; None and -1: any.
_MEANT = partial(
    _changed,
    added=(
        ("cluster_id", str | None, _of("string", default=None)),
        ("node_id", i32, _of("int32", default=i32(-1))),
    ),
)
_TOLD = partial(_items_changed, "results", added=(("error_message", str | None, _of("string", default=None)),))
_REQUESTS: Mapping[tuple[int, int], Callable[[Any, int], Any]] = {
    (18, 5): _MEANT,
    (28, 6): _BY_ID,
    (42, 3): _changed,
}
_RESPONSES: Mapping[tuple[int, int], Callable[[Any, int], Any]] = {
    (18, 5): _changed,
    (28, 6): _BY_ID,
    (42, 3): _TOLD,
}
