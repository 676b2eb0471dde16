"""Schemas from text, without a JVM."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from datasource.schema import TYPES

_OTHER_STRUCT = StructType([StructField("k", StringType()), StructField("v", BinaryType())])
_KNOWN = [
    StringType(), BinaryType(), IntegerType(), ShortType(), LongType(), TimestampType(), VarcharType(3),
    MapType(StringType(), BinaryType()), TYPES["headers"], ArrayType(_OTHER_STRUCT),
]  # fmt: skip
_BY_NAME = {kind.simpleString(): kind for kind in _KNOWN}


def schema(ddl: str) -> StructType:
    """'a string, b int' as a schema."""
    pairs = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, _BY_NAME[kind]) for name, kind in pairs])
