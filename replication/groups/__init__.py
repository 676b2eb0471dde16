"""The machine of one consumer group, with no disk, socket or clock, and what is stored of a group.

`step(group, event, now, limits) -> (group, effects)` in `machine`. What it knows: `state`. What it is told and what
it asks for: `events`. Kafka's records in `__consumer_offsets`: `records`.
"""

from replication.groups import events
from replication.groups.machine import resume, step
from replication.groups.state import Group, Limits, Now, Phase, deadline_ms

__all__ = ["Group", "Limits", "Now", "Phase", "deadline_ms", "events", "resume", "step"]
