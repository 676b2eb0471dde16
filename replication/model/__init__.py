"""The values of a cluster, all frozen; nothing here blocks.

`features`: the levels of a cluster, and which broker supports which; `cluster`: partitions, brokers, leaders and ISRs;
`listeners`: where brokers are met, and how; `edit`: how a machine changes a frozen state; `state_changes`: the lines of
state-change.log; `metadata`: the cluster as controllers described it to this broker; `placement`: which brokers get
replicas; `times`: what ListOffsets asks for.
"""
