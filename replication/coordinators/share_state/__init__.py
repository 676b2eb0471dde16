"""Share state: which records of a partition a share group has done with, kept in `__share_group_state` (KIP-932).

From the ground up: `machine` decides about the state of one share partition, a partition of a topic for one group;
`coordinator` drives it: it answers a decision only after it is committed in that partition of the internal topic;
`states` is what coordinators of groups and leaders of partitions ask, wherever that coordinator is.
"""
