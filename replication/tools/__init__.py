"""An operator's tools beside a cluster, as functions that return values; `replication.cli` has a command for each.

`connecting` makes clients. `topics`, `configs`, `quotas`,
`acls`, `offsets`, `groups`, `transactions`, `brokers`, `elections`,
`features` and `reassignments` ask a running cluster, and change it; `status` sums it up, `top` looks at what moves;
`console` has records for a terminal, `dead_letters` those that did not fit. `performance` measures rates and latencies,
`verifiable` tells each record. `offset_resets` decides where a group's offsets go, `plans` where replicas go;
`state_logs` merges the brokers' logs. `replica_verification` reads all replicas, and `replica_comparison` decides
whether they are alike. `mirror` copies topics of an existing Kafka to `mirror_targets`, a directory or a cluster.
`recover_coordination` restores a lost coordination store, as `recovery_plan` decides from the brokers' directories.
"""
