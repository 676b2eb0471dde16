"""The pure machine of a cluster: `step.step(state, event, limits) -> (state, effects)`.

From the ground up: `events` (events and effects), `transitions` (the states of partitions and replicas, and from
which each may be entered), `assignment` (one function per way to elect); `state`; `draft`, a state
while one event is processed; `reassignment`; `elections`, the one place that decides who leads and who is in sync;
`deletion`, `rebalance`; `step`.

A state change is an effect that writes to the tree. It counts, and brokers hear of it, once the write has succeeded.
"""
