"""Sail, a Spark without Java: all in which it differs from Spark, and what is refused there.

Sail runs data sources in its own process, several tasks at a time, and tells them less than Spark does: nothing of
streams, of most save modes, and of the number of a task. Schemas are those of Arrow. So a client refuses what the
server could not, before a plan is sent: `SailClient`.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark import TaskContext
from pyspark.sql.types import StructType

from datasource.connector.options import selected_columns
from datasource.connector.server_paths import refuse_relative
from datasource.connector.typed_options import is_typed
from datasource.schema import spark_schema
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError
from logstore.store.transactions import processes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT, COUNTS = "pylog", "pylog_counts"
CATALOG = "sail"  # every session of Sail has it
_SHORT = "run the query on Spark, or read and write batches here: spark.read, df.write.mode('append')"
STREAM = f"Sail runs no streams of pylog: it would read once, as a batch, and forget where it stopped; {_SHORT}"
NO_EVENTS = "Sail runs no streams of pylog, so there is nothing to observe; run the query on Spark"
MODE = "Sail tells pylog no save mode but overwrite, and a log is append-only: write with .mode('append')"
TABLE = (
    "Sail would not give the options of a new table to its reads: write with .mode('append').save(), and read in SQL "
    "through the views of datasource.register(spark, place)"
)
_CREATES = re.compile(rf"(?is)\bcreate\b.*\busing\s+`?{FORMAT}\b.*\bas\b\s*\(?\s*(select|with|values|table|from)\b")
UNKNOWN = "in Sail make the format known by datasource.register(spark), which refuses streams and new tables, too"


def in_sail() -> bool:
    """Whether this process is Sail's, or a program that has started it."""
    return "pysail" in sys.modules


def to_spark(schema: StructType | pa.Schema) -> StructType:
    """Return the columns that Spark gives, or Sail means; a time without a zone is one in Spark, too."""
    if isinstance(schema, StructType):
        return schema
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def version_hint(text: str) -> str:
    """The line that answers Sail's refusal of a client; "" for another error."""
    found = re.search(r"unsupported PySpark version: (\S+)", text)
    return (
        f"this Sail knows no PySpark {found[1]}: pip install 'pyspark-pylog[sail]', or a newer pysail" if found else ""
    )


def driver() -> str:
    """The identity of the process that plans and commits a write: the JVM above this one, or Sail's, which is this."""
    return processes.this(SYSTEM) if in_sail() else processes.driver(SYSTEM)


def task_number(run: str, driver: str) -> tuple[int, int]:
    """The partition of this task, and the number of its attempt; Sail does not say: then one that no other has."""
    if (task := TaskContext.get()) is not None:
        return task.partitionId(), task.attemptNumber()
    with _counting:
        number = _tasks.pop(run, -1) + 1
        _tasks[run] = number
        if len(_tasks) > RUNS_MAX:
            del _tasks[next(iter(_tasks))]
    # The same numbers again and again, where there is one process: brokers remember each.
    return number, 0 if driver == processes.this(SYSTEM) else _process_number()


RUNS_MAX = 1000
_tasks: dict[str, int] = {}  # of the runs that wrote last
_counting = threading.Lock()


@cache
def _process_number() -> int:
    return SYSTEM.random.getrandbits(31)


class SailClient:
    """Sees each plan of a session before the server does: a hook of Spark Connect's client.

    `views`: those of topics, which are no streams either.
    """

    def __init__(self) -> None:
        self.views: set[str] = set()

    def on_execute_plan(self, request: Any) -> Any:
        """Return the request as Sail does what it says. Raises: InvalidRequestError: Sail cannot."""
        for part in _parts(request.plan):
            if why := refusal(part, self.views):
                raise InvalidRequestError(why)
            amend(part)
            if not in_sail():  # else the server is in this process, perhaps, or was started here
                refuse_relative(_options(part), str(Path.cwd()), "you are")
        return request


def _options(part: Any) -> dict[str, str]:
    """The options of a read or a write of pylog, with its path."""
    match part.DESCRIPTOR.name:
        case "Read" if part.data_source.format.lower() in (FORMAT, COUNTS):
            return {"path": "".join(part.data_source.paths[:1]), **part.data_source.options}
        case "WriteOperation" if _is_ours(part.source):
            return {"path": part.path, **part.options}
    return {}


def refusal(part: Any, views: set[str]) -> str:
    """Why Sail cannot do what this message of a plan asks for, "" if it can."""
    match part.DESCRIPTOR.name:
        case "Read" if part.is_streaming:
            name = part.named_table.unparsed_identifier.strip("`").lower()
            return STREAM if _is_ours(part.data_source.format) or name in views else ""
        case "WriteStreamOperationStart":
            return STREAM if _is_ours(part.format) else ""
        case "WriteOperation" if _is_ours(part.source):
            if part.HasField("table"):
                return TABLE
            return "" if part.mode in (part.SAVE_MODE_APPEND, part.SAVE_MODE_OVERWRITE) else MODE
        case "WriteOperationV2":
            return TABLE if _is_ours(part.provider) else ""
        case "SQL":
            return TABLE if _CREATES.search(part.query) else ""
    return ""


def amend(part: Any) -> None:
    """Give a read its columns in the session's time zone, and a write one task, unless `repartition` says how many."""
    match part.DESCRIPTOR.name:
        case "Read" if _is_ours(part.data_source.format) and not part.data_source.schema:
            if is_typed(part.data_source.options):
                return
            # Hours and days of a time are those of its column's zone: of UTC, if the server asks us for the columns.
            columns = selected_columns(dict(part.data_source.options))
            part.data_source.schema = spark_schema(columns).simpleString()
        case "WriteOperation" if _is_ours(part.source) and not _is_partitioned(part.input):
            # Sail (0.7) plans other numbers of tasks than it runs, and then fails: "Invalid partition id".
            whole = type(part.input)()
            whole.repartition.num_partitions = 1
            whole.repartition.input.CopyFrom(part.input)
            part.input.CopyFrom(whole)


def _is_partitioned(rows: Any) -> bool:
    while (kind := rows.WhichOneof("rel_type")) in _ROW_BY_ROW:
        rows = getattr(rows, kind).input
    return kind in ("repartition", "repartition_by_expression")


_ROW_BY_ROW = ("project", "to_df", "with_columns", "with_columns_renamed", "drop", "subquery_alias")


def _is_ours(name: str) -> bool:
    return name.lower() == FORMAT


def _parts(plan: Any) -> Iterator[Any]:
    """All messages of a plan, each before those in it."""
    left = [plan]
    while left:
        yield (part := left.pop())
        for _, value in part.ListFields():
            if hasattr(value, "ListFields"):
                left.append(value)
            elif not isinstance(value, str | bytes | int | float):  # a list, or a mapping
                values = value.values() if hasattr(value, "values") else value
                left += [each for each in values if hasattr(each, "ListFields")]


def client_of(spark: SparkSession) -> SailClient | None:
    """Return what sees the plans of this session; None: its server is not Sail."""
    hooks = getattr(getattr(spark, "_client", None), "_session_hooks", ())
    return next((hook for hook in hooks if isinstance(hook, SailClient)), None)


def attach(spark: SparkSession) -> bool:
    """Let a `SailClient` see the plans of this session, if its server is Sail; return whether it is."""
    if client_of(spark) is not None:
        return True
    if all(catalog.name != CATALOG for catalog in spark.catalog.listCatalogs()):
        return False
    spark.client._session_hooks.append(cast("Any", SailClient()))  # not of their class, which needs their packages
    return True
