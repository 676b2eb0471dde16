"""A cluster of brokers over `logstore`: leaders, followers, a controller; it speaks Kafka's protocol."""
