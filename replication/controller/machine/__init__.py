"""The machine of a cluster, pure: `step.step(state, event, limits) -> (state, effects)`.

From the ground up: `events` (what happens, what is ordered), `transitions` (the states of partitions and replicas,
and from which each may be entered), `assignment` (placement, and one function per way to elect); `state`; `draft`, a
state while one event is worked in; `reassignment`; `elections`, the one place that decides who leads and who is in
sync; `deletion`, `rebalance`; `step`.

A state change is ordered as a write to the tree; it counts, and brokers are told, when the write has succeeded.
"""
