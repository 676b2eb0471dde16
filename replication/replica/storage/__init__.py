"""Logs of replicas, and the disk under them. What blocks runs in threads of `executor`.

From the ground up: `executor`; `batch_cache`, the last appends in memory for those who read at the end; `offline`,
the replicas that cannot be served or written, said in the tree; `room`, whether the disk has room; `damage_notes`;
`log_dir`, the directory of a broker, which has it alone; `replica_log`, one log as the event loop knows it;
`store_check`, whether the coordination store is the one these logs were written under; `adoption`, of a stand-alone
directory.

Work on one log is done in the order in which it was given.
"""
