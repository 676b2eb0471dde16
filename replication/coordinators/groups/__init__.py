"""Groups: those whose partition of `__consumer_offsets` this broker leads.

From the ground up: the machines share `settings`, `messages`, `keys` and `pieces`; `offsets` decides about committed
offsets; `classic` decides about the members of a group, who assign partitions themselves, and so its next state;
`parts` has the core of groups that are stored in parts, `fields` that of their records: `consumer` decides about those
of the consumer protocol, whose partitions it assigns, `share` about those whose members share partitions; `migration`
makes a group with members one of the other protocol, classic or consumer; `kinds` chooses between the three;
`topic_patterns`, topics that a regular expression matches; `records`, Kafka's binary keys and values of
`__consumer_offsets`; `slot` holds a group and its deferred heartbeats and commits;
`batches` builds the batches of the offsets topic; `deleted_topics` finds offsets without a topic; `state_questions`
asks the share states; `coordinator` drives the machines, and answers a decision only after it is committed in that
partition. It reaches partitions and share states through Protocols that `replication.broker` implements.
"""
