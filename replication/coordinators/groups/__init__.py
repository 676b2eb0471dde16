"""Consumer groups: those whose partition of `__consumer_offsets` this broker leads.

From the ground up: `settings` and `messages` are shared by two machines; `offsets` decides about committed offsets;
`classic` decides about the members of a group, who assign partitions themselves, and so its next state; `records`,
Kafka's binary keys and values of `__consumer_offsets`; `slot` holds a group and its deferred heartbeats and commits;
`batches` builds the batches of the offsets topic; `deleted_topics` finds offsets without a topic; `coordinator` drives
both machines, and answers a decision only after it is committed in that partition. It reaches partitions through a
Protocol that `replication.broker` implements.
"""
