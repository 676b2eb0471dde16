"""Coordinators of groups, transactions and share states, each at the leader of a partition of an internal topic.

From the ground up: `binary`, fields of Kafka's records, and which partition keeps a name; `partitioning`, by how many
partitions that is; `terms`, the partitions that this broker leads, and when each is loaded; `patterns`, regular
expressions of clients; `share_state`, how far share groups have come; `groups` and `transactions`, a pure machine each
with its driver, which answers a decision only after it is committed there.
"""
