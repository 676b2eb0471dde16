"""Logs of replicas, and the disk under them. Blocking work runs in threads of `executor`.

From the ground up: `blocked_time`, of a thread; `executor`; `batch_cache`, the last appends in memory for readers at
the end; `offline`, the offline replicas, written to the tree; `room`, whether the disk is full; `damage_notes`;
`offset_checkpoints`, which no cut leaves behind; `clean_stop`, what the next start need not look up; `log_dir`, the
directory of one broker; `replica_log`, one log as the event loop knows it; `store_check`, whether the coordination
store is the one under which these logs were written; `adoption`, of a stand-alone directory.

Work on one log is done in the order in which it was submitted.
"""
