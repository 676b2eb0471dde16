"""What brokers keep in internal topics, each by the leader of a partition: consumer groups, and transactions.

From the ground up: `binary`, fields of Kafka's records, and which partition keeps a name; `partitioning`, by how many
partitions that is; `terms`, the partitions that this broker leads, and when each is loaded; `groups` and
`transactions`, a pure machine each with its driver, which answers a decision only after it is committed there.
"""
