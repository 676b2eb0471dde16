"""Columns of every type that DDL and JSON have, drawn at random."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

PLAIN = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 0),
)  # fmt: skip

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)


def _columns(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    columns = st.builds(pa.field, names, types, st.booleans())
    return st.lists(columns, min_size=1, max_size=4, unique_by=lambda field: field.name)


types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), pa.field("value", kind))),
        _columns(inner).map(pa.struct),
    ),
    max_leaves=5,
)
columns = _columns(types)
