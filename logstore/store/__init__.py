"""A directory of topics, used in process: `LogStore`.

From the ground up: `description`, one topic; `catalog`, the topics, one small JSON file each; `disk_reserve`, room that
is given back when the disk is full; `recovery_points`, what is on disk; `meta_properties`, who owns the directory, and
`log_dir`, who may use it now; `stray`, partition directories of no topic; `topics`, catalog entries and directories
changed together; `log_manager`, the open logs; `reading`, records of a partition as Arrow batches; `topic_tail`, a
topic as it grows; `transactions`; `appending`, rows to partitions; `recovery`; `schemas`, of columns, in a topic;
`typed`, records as rows of columns; `store`, the face of it all.

Locks are taken in this order: the store, the catalog, the partition. Recovery points move only after an fsync.
"""
