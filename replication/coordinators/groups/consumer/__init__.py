"""Groups of the consumer protocol (KIP-848), whose partitions the coordinator assigns.

From the ground up: `state` and `events`; `records`, Kafka's keys and values of such groups; `assignors`, from
subscriptions to target assignments; `reconciliation` leads one member to its target; `draft` is a group while one event
is processed; `heartbeats` decides about members, `classic_members` about what those of the classic protocol ask, and
`quiet` answers heartbeats that change nothing; `commits` decides about members and the offsets of the group; `step`
puts them together.
"""
