"""The pure machine of a group's offsets: `step.step(offsets, event, now, limits) -> (offsets, effects)`.

From the ground up: `state`, the values; `events`, events and effects; `step`. The members of the group decide before
who may commit and delete, and which offsets are in use: an event says so.
"""
