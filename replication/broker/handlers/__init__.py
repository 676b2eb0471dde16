"""The APIs of a broker: one function or method each, `(context, body) -> response or an awaitable of one`.

`produce`: Produce; `fetch`: Fetch; `moved`: who leads a partition that this broker does not. `offsets`: ListOffsets,
OffsetForLeaderEpoch, DeleteRecords. `coordinators`: who keeps what. `groups` and `commits`: consumer groups and their
offsets; `consumer_groups`: those of KIP-848; `share_groups` and `share_offsets`: those of KIP-932; `parted_groups`:
what both kinds of groups answer; `offset_commits`: the OffsetCommits of one turn of the loop. `transactions`: producers
that use them. `share`: records for members of share groups; `share_state`: states of shared partitions, for brokers.
`operations`: what clients may do. `cluster`, `topic_pages`, `topics`, `configs`, `users`, `acls`, `quotas`, `features`,
`log_dirs` and `reassignments`: administration. `controller`: requests of a controller to this broker, and to this
broker as the controller. `broker_epochs`: protection against guessed epochs.
"""
