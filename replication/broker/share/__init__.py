"""Share partitions: the partitions that this broker leads, as share groups read them (KIP-932).

From the ground up: `machine` decides who has which records; `partition` drives it, between log and share coordinator;
`sessions`, what members read; `partitions`, all of a broker.
"""
