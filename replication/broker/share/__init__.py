"""Share partitions: the partitions that this broker leads, as share groups read them (KIP-932).

From the ground up: `machine` decides who has which records; `letters`, the bytes of dead letters (KIP-1191), and
`letter_writer`, their way to their topic; `partition` drives the machine, between log and share coordinator;
`sessions`, what members read; `partitions`, all of a broker.
"""
