"""Consumer groups: those whose partition of `__consumer_offsets` this broker leads.

`machine` decides what becomes of a group; `partitioning` says which partition keeps it; `loading` reads a partition
that this broker has begun to lead; `coordinator` drives the machine: what a group decided is answered only after it
is committed in that partition.
"""
