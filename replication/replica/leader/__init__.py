"""The role of a replica that leads, in one leader epoch after the other.

From the ground up: `results`, what handlers and leaders say to each other, as values; `purgatory`, who waits for a
commit; `isr_writer`, ISRs written to the tree, many at once; `broker_epochs`, who may ask as a follower; `caught_up`,
the followers that ask on; `log_starts`, where their logs start; `writers`, whose transactions hold the partition;
`strange_ids`, records without the id of a schema, and `schema_ids`, which there are; `guard`, what clients may append,
and `schema_records`, what to the topic `_schemas`; `appends`, how that gets into the log, and `append_groups`,
together; `readable`, a replica as a fetch reads it; `leader`, which drives `machine.isr` and takes records;
`repair_source`, a replica that does not lead, as a damaged one reads it; `rows`, the partitions of a fetch, and how
they are read; `sessions`, the one wait of all fetches; `offsets`, by time and by epoch.

A change of the ISR counts as possible at once where it grows, and as done only when it is written.
"""
