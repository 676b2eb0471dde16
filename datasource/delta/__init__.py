"""The Delta table that holds the older records of a topic, and the union of both.

From the ground up: `storage_options`, URLs of object stores and how these are reached; `storage`, where the files of a
table are, in a directory or an object store; `log`, the log of a Delta table entry by entry; `owner`, whose table it
is, and the note about it; `table`, how far it goes, and one function that commits; `columns`, those of records, and
`registered`, those of a schema beside the bytes; `parquet`, records as its files; `topic_tables`, the tables of a
topic; `snapshots`, the newest of a table, and the records in its files; `tiered_topics`, the union of a log and its
table, each offset once; `tiering`, what they lack, and the tiered offset of the log.

A log's tiered offset moves after the commit that holds its records, so retention deletes nothing that is nowhere.
"""
