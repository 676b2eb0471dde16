"""Retention and compaction, which change the old segments of a log.

From the ground up: `retention_clock`, the time that deletions go by (a clock that jumped deletes nothing for a day);
`retention`, by age, size and log start; `compaction_plan`, what may be rewritten; `verdicts`, what of transactions
stays; `compaction`, which keeps the last record of each key.

Both work beside readers and writers. A segment is replaced or deleted only after whatever takes its place is on disk.
"""
