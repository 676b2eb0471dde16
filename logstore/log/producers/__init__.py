"""The producers of one log: duplicates, gaps, epochs, open and aborted transactions.

From the ground up: `state`, Kafka's rules, which touch nothing (`ProducerStateManager` there); `snapshots`, their
files; `tracker`, that state as of a look at the log, with its snapshots and transaction indexes; `recovery`, which
makes those agree with the batches after a crash.

A batch is checked before it is written and applied after: what is in the log is what the state says.
"""
