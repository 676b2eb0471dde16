"""The pure machine of one share partition at its leader: `step.step(state, event, now_ms, terms)`.

From the ground up: `runs`, ranges of offsets that are alike; `state`, its values; `events`, its events and effects;
`acquiring`, which records a member gets; `step`. Times are those of a clock that never goes back.
"""
