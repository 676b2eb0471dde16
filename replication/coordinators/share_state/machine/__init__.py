"""The pure machine of one share partition's stored state: `step.step(state, event, now_ms, settings)`.

From the ground up: `batches`, ranges of offsets with their delivery state; `state`, its values; `events`, its events
and effects; `records`, Kafka's binary keys and values of `__share_group_state`; `step`.
"""
