"""One partition: a row of segments in one directory, as Kafka's `UnifiedLog`.

From the ground up: `segments`, its files; `producers`, sequence numbers and transactions; `leader_epochs`;
`validation`, what may be appended and when a segment ends (where a batch's size, CRC and times are checked);
`recovery`, which makes a log of what a crash left; `recovery_point`, what is on disk; `reader`, reads and look-ups
without a lock; `writer`, the end of the log: append, roll, cut; `log`, one partition with its lock; `isolation`, what a
reader may see of transactions; `soundness`, where a log is damaged; `tiering`, what of it is in remote storage;
`holes`, damaged ranges filled from elsewhere.

The order that `log.Log` keeps: take the lock of the partition, look whether other processes changed it, append, tell
the producers, then note; the end of the log moves only when the batch is written whole.
"""
