"""The Kafka protocol: bytes to requests, responses to bytes. No I/O here, and nothing that decides."""
