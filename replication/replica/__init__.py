"""The replicas of one broker: their logs and roles.

From the ground up: `machine`, the decisions; `quota`, how fast is copied; `storage`, logs and the disk; `leader` and
`follower`, the two roles; `schema_topic`, schemas as any broker reads them; `partition`, one replica with its log and
its role; `second_copy`, whether the leader has what would be cut; `filling`, damaged ranges from other replicas;
`repairs`, damaged replicas made sound; `partitions`, all replicas; `scrub` and `maintenance`, on a schedule; `nearest`,
followers that consumers read; `requests`, LeaderAndIsr, StopReplica and UpdateMetadata; `manager`, the face for
handlers, as Kafka's `ReplicaManager`.

A role begins only after the writes of the former one are done. A machine learns of a write only after it: the high
watermark (`machine.isr`) never passes a record that is not in the log of every replica in sync.
"""
