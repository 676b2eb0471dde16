"""Share groups (KIP-932), whose members share the records of partitions.

From the ground up: `state` and `events`; `records`, Kafka's keys and values of such groups; `assignor`, from
subscriptions to target assignments; `draft` is a group while one event is processed; `partitions` decides which
partitions have a share state, and what becomes of these states; `heartbeats` decides about members; `step` puts them
together.
"""
