"""Consumer groups: those whose partition of `__consumer_offsets` this broker leads.

`machine` decides what becomes of a group; `coordinator` drives it, and answers a decision only after it is committed
in that partition. It reaches partitions through a Protocol that `replication.broker` implements.
"""
