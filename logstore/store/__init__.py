"""A directory of topics, used in process: `LogStore`.

From the ground up: `catalog`, the topics, one small JSON file each; `disk_reserve`, room that is given back when the
disk is full; `log_dir`, whose directory it is, who may use it now, and what of it is known to be on disk; `reading`,
records of a partition as Arrow batches; `topic_tail`, a topic as it grows; `stray`, partition directories of no
topic; `topics`, catalog entries and directories changed together; `transactions`; `store`, the face of it all.

Locks are taken in this order: the store, the catalog, the partition. Recovery points move only after an fsync.
"""
