"""What a broker answers: one function or method per API, `(context, body) -> response or an awaitable of one`.

`data`: Produce and Fetch. `offsets`: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId. `groups` and
`commits`: consumer groups and their offsets. `topics`, `configs`, `cluster` and `reassignments`: administration.
`controller`: what a controller tells this broker, and what brokers ask of it while it is the controller. `strangers`:
who guesses epochs does not do so for long.
"""
