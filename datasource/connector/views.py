"""Topics as views of a session, to read and to write them in SQL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from datasource.connector import sail
from datasource.connector.options import read_options, selected_columns, write_options
from datasource.schema import HEADERS
from datasource.topics.interface import ReadableTopics, is_internal
from datasource.topics.locations import location_at
from logstore.errors import InvalidRequestError
from logstore.schemas import ddl


def make_views(
    spark: SparkSession, place: str | os.PathLike[str], topics: str | Iterable[str], options: Mapping[str, object]
) -> list[str]:
    """Make a temporary view of each of these topics, and return their names: see `datasource.register`."""
    given = {name: str(value) for name, value in options.items()}
    columns = given.pop("schema", None)
    if own := sorted({name.lower() for name in given} & {"subscribe", "topic", "columns"}):
        raise InvalidRequestError(
            f"option {own[0]!r} is set for each view: 'topics' chooses topics, SELECT the columns"
        )
    given |= location_at(place).options
    location = write_options(given | {"topic": "t", "subscribe": "t"}).location
    names = chosen(location.read(), [topics] if isinstance(topics, str) else list(topics))
    views = {name: given | {"subscribe": name, "topic": name} for name in names}
    schemas = {name: _columns(view, columns) for name, view in views.items()}
    if client := sail.client_of(spark):
        for name, view in views.items():
            reader = spark.read.format("pylog").options(**view)
            typed = schemas[name]
            (reader.schema(typed) if typed else reader).load().createOrReplaceTempView(name)
            client.views.add(name.lower())
        return names
    for name, view in views.items():
        table = _table(spark, schemas[name], with_headers=selected_columns(view)[-1] == HEADERS)
        spark.read.options(**view).table(table).createOrReplaceTempView(f"`{name}`")
    return names


def _columns(view: Mapping[str, str], columns: str | None) -> StructType | None:
    """Return the columns of a view; None: those of bytes. Raises: InvalidConfigError, InvalidRequestError: no such."""
    options = read_options(view, streaming=False)
    if options.typed is None and columns is None:
        return None
    if options.typed is None:
        raise InvalidRequestError("schema names columns, and values are bytes: set 'value.format', too")
    from datasource.connector.typed import prepared, spark_columns

    if columns is None and not options.typed.is_registered:
        raise InvalidRequestError("values with a format have columns: name them by schema='user string, amount double'")
    if columns is None:
        return spark_columns(options)
    found = sail.to_spark(pa.schema(ddl.parse(columns)))
    prepared(options, found)
    return found


def _table(spark: SparkSession, columns: StructType | None, *, with_headers: bool) -> str:
    """Return the name of a table without options, made if it is missing.

    Spark 4.2 plans a view over `format("pylog")` once, and would not show later records. A view over a table of the
    catalog is planned at each use, with the options that the view was made with. (Sail plans both at each use.)
    """
    if columns is not None:
        text = ddl.text_of(sail.to_arrow(columns))
        name, rest = f"pylog_{hashlib.sha256(text.encode()).hexdigest()[:16]}", f"({text}) USING pylog"
    else:
        name = "pylog_with_headers" if with_headers else "pylog"
        rest = f"USING pylog OPTIONS (includeHeaders '{str(with_headers).lower()}')"
    spark.sql(f"CREATE TABLE IF NOT EXISTS spark_catalog.default.{name} {rest}")
    return f"spark_catalog.default.{name}"


def chosen(source: ReadableTopics, patterns: Iterable[str]) -> list[str]:
    """Return the names of the topics that these names and shell patterns mean, sorted.

    Raises: UnknownTopicError: a name without `*`, `?` or `[` is no topic; InvalidRequestError: two views would have
    one name, because Spark's names have no case.
    """
    known = [info.name for info in source.topics()]
    found: set[str] = set()
    for pattern in patterns:
        if any(character in pattern for character in "*?["):
            wants_internal = is_internal(pattern.rstrip("*"))
            matching = {name for name in known if fnmatchcase(name, pattern)}
            found |= matching if wants_internal else {name for name in matching if not is_internal(name)}
        else:
            found.add(source.topic(pattern).name)
    views: dict[str, str] = {}
    for name in sorted(found):
        other = views.setdefault(name.lower(), name)
        if other != name:
            raise InvalidRequestError(
                f"topics {other!r} and {name!r} would be one view, because Spark's names have no case: name one of "
                "them in 'topics'"
            )
    return list(views.values())
