"""Our client, tools and Spark source beside a real Kafka 4.4, and its clients beside our brokers."""
