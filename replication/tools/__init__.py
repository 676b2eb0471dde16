"""An operator's tools beside a cluster.

`mirror` copies topics of an existing Kafka to `mirror_targets`, a directory or a cluster. `recover_coordination`
restores a lost coordination store, as `recovery_plan` decides from the brokers' directories.
"""
