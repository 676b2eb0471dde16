"""The machine of one group, pure: `step.step(group, event, now, limits) -> (group, effects)`.

From the ground up: `state`, what is known of a group; `events`, what it is told and asks for; `draft`, a group while
one event is worked in; `records`, Kafka's binary keys and values of `__consumer_offsets`; `joining`, who may be a
member; `commits`, who may commit, and when offsets go; `step`.
"""
