"""Columns of records: how keys and values are made of them, and where their schemas are kept.

From the ground up: `ddl`, schemas from text; `parsed`, many values as columns, and the reasons of those that are none;
`conversion`, a JSON document to values of declared types; `documents`, many of them to columns.
"""
