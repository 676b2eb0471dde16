"""Transactions: those whose partition of `__transaction_state` this broker leads.

`machine` decides what becomes of a transactional id; `coordinator` drives it: it answers a decision only after it is
committed in that partition, and only then has markers written. It reaches partitions, and the brokers that write
markers, through Protocols that `replication.broker` implements.
"""
