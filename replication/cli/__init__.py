"""The commands of clusters. They parse and print; the work is done by functions of `tools` that return values.

`connecting` is what commands on a running cluster share. `brokers` starts brokers, and stops one of several by the
`supervisor` that runs them. `mirror` copies topics. `topics`, `schemas`, `configs`, `acls`, `records`, `dlq`, `groups`,
`offsets`, `transactions`, `replicas`, `verify_replicas`, `performance`, `machines`, `features`, `status` and `top` act
on a running cluster. Where a command acts on a directory as well, `logstore.cli` has its options. `state_logs` reads
the brokers' files.
"""
