"""Kinds of Spark: classic, Spark Connect, and Sail, which has no Java; and where data sources differ in them.

Sail gives and takes schemas of Arrow, whose times have the session's zone, or none, which then means UTC. It runs
sources in its own process, several tasks at a time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def is_sail() -> bool:
    """Whether this process is Sail's, or was: a program may start it."""
    return "pysail" in sys.modules


def shown(schema: StructType) -> StructType:
    """Return what `DataSource.schema` answers: Sail cannot convert Spark's type of times."""
    return cast("StructType", arrow(schema)) if is_sail() else schema


def struct(schema: StructType | pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    return schema if isinstance(schema, StructType) else from_arrow_schema(schema)


def arrow(schema: StructType | pa.Schema) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(schema, timezone="UTC") if isinstance(schema, StructType) else schema
