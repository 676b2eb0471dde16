"""The pure machine of one group: `step.step(group, event, now, limits) -> (group, effects)`.

From the ground up: `state`, the values of a group; `events`, its events and effects; `draft`, a group while one event
is processed; `records`, Kafka's binary keys and values of `__consumer_offsets`; `joining`, who may be a member;
`standing`, heartbeats and commits that need no draft; `commits`, who may commit, and when offsets expire; `step`.
"""
