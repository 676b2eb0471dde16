"""Failures: the answer of any API to a request that is refused, whole or in rows, made from the API's schema.

A response says an error once, or in each of the rows that answer rows of the request. The row array of a message is the
first array of a request, and the first array of a response whose structs say an error.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from replication.errors import ErrorCode
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import converters
from replication.protocol.kio_pieces import Rows, item_class

CODE_FIELDS = ("error_code", "partition_error_code")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Failure(NamedTuple):
    code: ErrorCode
    message: str | None = None


class RowArray(NamedTuple):
    """The rows of a response, and how each of them fails."""

    name: str
    form: Form


@dataclass(frozen=True)
class Form:
    """The fields of a response or of one of its rows: `code` is the error's, `keys` may repeat a row of the request."""

    code: str | None
    keys: tuple[str, ...]
    values: Mapping[str, Any]
    rows: RowArray | None

    def failed(self, asked: Any, failure: Failure) -> Mapping[str, Any]:
        """Return the answer to a request, or a row to a row of it: the error stands once, as high as it can."""
        values = dict(self.values)
        if self.code is not None:
            values[self.code], values["error_message"] = failure
        elif self.rows is not None:
            values[self.rows.name] = self.rows.form.failed_rows((row, failure) for row in rows_of(asked))
        return values

    def failed_rows(self, asked: Iterable[tuple[Any, Failure]]) -> Rows[Mapping[str, Any]]:
        """Return the rows that answer these rows of a request."""
        known = [(row, failure) for row, failure in asked if self._is_named(row)]
        return Rows(len(known), (self._failed_row(row, failure) for row, failure in known))

    def _is_named(self, row: Any) -> bool:
        """Can a row say which one of the request it answers, if it says that at all, and not by its place?"""
        return not self.keys or _is_plain(row) or hasattr(row, self.keys[0])

    def _failed_row(self, row: Any, failure: Failure) -> Mapping[str, Any]:
        values = {**self.failed(row, failure)}
        if _is_plain(row):
            values[self.keys[0]] = row
        else:
            values.update((key, getattr(row, key)) for key in self.keys if hasattr(row, key))
        return values


def _is_plain(row: Any) -> bool:
    return isinstance(row, str | int) and not isinstance(row, enum.Enum)


def rows_of(asked: Any) -> Sequence[Any]:
    """Return the rows of a request, or the rows in one of its rows."""
    name = None if _is_plain(asked) else array_of(asked)
    return () if name is None else getattr(asked, name) or ()


def array_of(asked: Any) -> str | None:
    """Return the name of the row array of a request: an entity or a value; None: it has none."""
    names = [field.name for field in fields(asked)] if is_dataclass(asked) else asked._fields
    return next((name for name in names if isinstance(getattr(asked, name), tuple | list)), None)


def form_of(key: ApiKey, version: int) -> Form:
    """Return how an API fails in this version. Not for Produce and Fetch, whose responses are values."""
    return _form(apis.response_class(key, version))


@cache
def _form(cls: Any) -> Form:
    code, rows = None, None
    keys: list[str] = []
    values: dict[str, Any] = {}
    for field in fields(cls):
        default, item = converters(cls)[field.name][1], item_class(field)
        if field.name in CODE_FIELDS:
            code = field.name
            values[code] = ErrorCode.NONE
        elif item is not None and rows is None and _says_error(item):
            rows = RowArray(field.name, _form(item))
            values[field.name] = ()
        else:
            is_needed = default is MISSING
            if is_needed and field.name != "error_message":
                keys.append(field.name)
            values[field.name] = _nothing(field.type, field.metadata.get("kafka_type")) if is_needed else default
    return Form(code, tuple(keys), values, rows)


def _says_error(cls: Any) -> bool:
    known = [field.name in CODE_FIELDS for field in fields(cls)]
    return any(known) or any(_says_error(item) for field in fields(cls) if (item := item_class(field)) is not None)


def _nothing(kind: Any, kafka_type: str | None) -> Any:
    """Return the value of a field of a failed row that has no default."""
    if type(None) in get_args(kind) and get_origin(kind) is not tuple:
        return None
    if get_origin(kind) is tuple:
        return ()
    return _NOTHING.get(kafka_type or "", -1)


_NOTHING: Mapping[str, Any] = {
    "string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None,
    "timedelta_i32": datetime.timedelta(0), "timedelta_i64": datetime.timedelta(0), "datetime_i64": _EPOCH,
}  # fmt: skip
