"""The pure machine of the members of one classic group: `step.step(group, event, now, limits) -> (group, effects)`.

From the ground up: `embedded`, the bytes that consumers send each other; `state`, the values of a group; `events`, its
events and effects; `permission`, the rules for heartbeats and commits; `draft`, a group while one event is processed;
`joining`, who may be a member; `deferred`, the heartbeats and commits that a group takes in later; `commits`, the
members' part in commits and deletions, which the machine of the offsets performs; `step`.
"""
