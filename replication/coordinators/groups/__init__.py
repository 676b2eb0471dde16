"""Consumer groups: those whose partition of `__consumer_offsets` this broker leads.

From the ground up: `settings` and `messages` are shared by two machines; `offsets` decides about committed offsets;
`machine` decides about the members, and so the next state of a group; `slot` keeps a group and what is noted beside it;
`batches` builds the batches of the offsets topic; `deleted_topics` finds offsets without a topic; `coordinator` drives
the machine, and answers a decision only after it is committed in that partition. It reaches partitions through a
Protocol that `replication.broker` implements.
"""
