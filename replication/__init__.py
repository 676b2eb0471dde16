"""A cluster of brokers over `logstore`: leaders, followers, a controller; it speaks Kafka's protocol.

From the ground up: `errors`, Kafka's codes; `config`; `model`, the values that all speak of; `protocol`, bytes to
messages and back; `coordination`, the tree that a cluster agrees on; `security`, who may do what; `network`,
connections; `client`, a cluster's topics for programs and Spark; `controller`, who leads what; `replica`, the
partitions on one broker; `coordinators`, consumer groups and transactions; `broker`, one broker with all of these;
`local_cluster`, brokers as processes of this machine; `tools`, what commands return; `cli`.

A pure machine decides: `step(state, event) -> state, effects`, in the rooms called `machine`, and in those of a group,
`classic` and `offsets`. Their drivers perform the effects in order and tell the outcome as the next event.
"""
