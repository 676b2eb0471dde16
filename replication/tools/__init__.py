"""What an operator runs beside a cluster.

`mirror` copies topics of an existing Kafka to `mirror_targets`, a directory or a cluster. `recover_coordination`
makes a lost coordination store again, as `recovery_plan` decides from what the brokers' directories hold.
"""
