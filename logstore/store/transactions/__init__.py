"""Transactions of a stand-alone store: what is appended under one is visible at once, everywhere, or never.

From the ground up: `state`, who may write and what was decided, and `processes`, whether another process is alive;
`events`, what each event does to the state, which touches nothing; `journal`, the file of those events; `liveness`, who
can still commit; `completion`, which writes the markers that end transactions and forgets what is over; `transaction`,
one writer's part; `coordinator`, which drives them.

Its order: register partitions in the journal, append, journal the decision, write the markers, journal the end. Each
step is on disk before the next one begins, so whoever comes after a crash goes on from there.
"""
