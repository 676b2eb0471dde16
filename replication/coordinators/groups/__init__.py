"""Consumer groups: those whose partition of `__consumer_offsets` this broker leads.

From the ground up: the machines share `settings`, `messages` and `keys`; `offsets` decides about committed offsets;
`classic` decides about the members of a group, who assign partitions themselves, and so its next state; `consumer`
about those of the consumer protocol, whose partitions it assigns; `kinds` chooses between the two, and makes an empty
group of one protocol one of the other; `topic_patterns`, topics that a regular expression matches; `records`,
Kafka's binary keys and values of `__consumer_offsets`; `slot` holds a group and its deferred heartbeats and commits;
`batches` builds the batches of the offsets topic; `deleted_topics` finds offsets without a topic; `coordinator` drives
the machines, and answers a decision only after it is committed in that partition. It reaches partitions through a
Protocol that `replication.broker` implements.
"""
