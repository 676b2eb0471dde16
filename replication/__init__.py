"""Brokers, controller and replication. What decides is here; the network is not yet, and `logstore` works without."""
