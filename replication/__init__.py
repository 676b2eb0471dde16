"""Brokers, controller, replication and the Kafka protocol: nothing is here yet, `logstore` works without it."""
