"""The values of a cluster, all frozen; nothing here decides, and nothing blocks.

`cluster`: partitions, brokers, leaders and ISRs; `state_changes`: the lines of state-change.log; `metadata`: what a
broker has been told of the cluster, which only ever becomes newer.
"""
