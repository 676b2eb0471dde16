"""Batches of Spark that are written to a cluster exactly once, by Kafka's transactions and a topic of decisions.

From the ground up: `state`, what is known of a name, and the rules, on values; `protocol`, which message follows which,
over `Brokers`; `wire`, these over a client; `batches`, what Spark's writers hold.

The order that everything rests on: a run takes its name over; a task begins its transaction and looks, after that, that
nothing is decided; the driver decides in one transaction of its own; only then the tasks' transactions are committed,
and what is left is aborted. A crash anywhere leaves either an undecided batch, which is written again, or a decided
one, which the next run finishes before it begins.
"""
