"""Columns of records: how keys and values are made of them, and where their schemas are kept.

From the ground up: `ddl`, schemas from text; `parsed`, many values as columns, and the reasons of those that are none;
`conversion`, a JSON document to values of declared types; `members`, what the kernels must know of these types;
`nested`, members that Arrow's parser does not take; `flat`, documents as most are written, straight to columns;
`documents`, many documents to columns; `layout`, which columns are in keys and values, and in which formats; `misfits`,
what becomes of those that do not fit; `rendering`, columns to JSON; `fitting`, a caller's columns in declared types;
`formats`, how columns are the bytes of a key or a value; `avro`, the same for Avro's; `typed`, records of a topic as
rows of columns, and the way back.

`json_schema`, columns as JSON Schema, and back; `subjects`, the records of the topic `_schemas` and their sum;
`strategies`, which subject has the schema of a topic's keys or values, and which ids these may bear; `compatibility`,
whether one may follow others; `registry`, the schemas of a place, by following that topic; `declared`, the columns that
a topic is made with; `choice`, which columns and formats a caller or the registry says; `inference`, the columns that
JSON values have.
"""
