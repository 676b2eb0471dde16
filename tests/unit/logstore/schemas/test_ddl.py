"""Schemas in Spark's DDL, read without Spark; tests/spark/test_tiering_stores.py compares them with Spark's own."""

import pyarrow as pa
import pytest
from hypothesis import given

from logstore import InvalidRequestError
from logstore.schemas import ddl
from tests.support.columns import columns


def test_columns_have_the_types_that_spark_gives_them():
    fields = ddl.parse("id BIGINT, `a ``b` string NOT NULL, at: timestamp COMMENT 'it''s, <x>', n decimal(5, 2), d dec")
    assert [(f.name, f.type, f.nullable) for f in fields] == [
        ("id", pa.int64(), True),
        ("a `b", pa.string(), False),
        ("at", pa.timestamp("us", tz="UTC"), True),
        ("n", pa.decimal128(5, 2), True),
        ("d", pa.decimal128(10, 0), True),
    ]


def test_types_nest():
    (field,) = ddl.parse("x array<struct<a: int, b map<string, array<double>> not null>>")
    a, b = pa.field("a", pa.int32()), pa.map_(pa.string(), pa.list_(pa.field("element", pa.float64())))
    assert field.type == pa.list_(pa.field("element", pa.struct([a, pa.field("b", b, nullable=False)])))


@pytest.mark.parametrize(
    "text",
    ["", "id", "id bigin", "id bigint,", "id bigint x", "id array<int", "id decimal(39,0)", "id decimal(x)",
     "id int not", "a-b int", "id int comment 5", "id int; x", "`` int", "id map<string>", "id struct<a>",
     "id int, id int"],
)  # fmt: skip
def test_another_text_is_refused_with_how_to_write_it(text):
    with pytest.raises(InvalidRequestError, match="write columns and types, as 'id bigint, who string'"):
        ddl.parse(text)


@given(columns)
def test_the_text_of_columns_is_read_as_these_columns(fields):
    assert ddl.parse(ddl.text_of(fields)) == tuple(fields)


def test_a_type_that_no_column_has_has_no_text():
    with pytest.raises(InvalidRequestError, match=r"uint8 is no type of a column"):
        ddl.text_of([pa.field("n", pa.uint8())])


def test_a_message_names_types_as_ddl_does_and_others_as_arrow_does():
    kinds = [pa.int64(), pa.timestamp("us", tz="UTC"), pa.decimal128(10, 2), pa.list_(pa.int8()), pa.uint8()]
    assert [ddl.type_name(kind) for kind in kinds] == [
        "bigint",
        "timestamp",
        "decimal(10,2)",
        "array<tinyint>",
        "uint8",
    ]


def test_columns_are_a_text_or_arrows_and_nothing_else():
    fields = (pa.field("id", pa.int64()), pa.field("who", pa.string()))
    assert ddl.as_fields("id bigint, who string") == ddl.as_fields(pa.schema(fields)) == ddl.as_fields(fields) == fields
    for strange in (5, None, ["id bigint"], {"id": "bigint"}):
        with pytest.raises(InvalidRequestError, match="write columns as"):
            ddl.as_fields(strange)
