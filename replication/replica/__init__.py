"""The partitions on one broker: their logs and roles.

From the ground up: `machine`, what decides; `storage`, logs and the disk; `leader` and `follower`, the two roles;
`partition`, one replica with its log and its role; `second_copy`, whether the leader has what would be cut;
`repairs`, damaged replicas copied from their leaders; `partitions`, all that are here; `scrub` and `maintenance`, on
a schedule; `requests`, LeaderAndIsr, StopReplica and UpdateMetadata obeyed; `manager`, the face for handlers, as
Kafka's `ReplicaManager`.

A role begins only when the former one's writes are done. A machine is told that something is written after it is: the
high watermark (`machine.isr`) never moves over what is not in the log of all who are in sync.
"""
