"""Commands with --bootstrap-server on a real Kafka, and their answers: a walk for each, by its words, in `WALKS`.

From the ground up: `place`, the Kafka, and what walks share; `topics`, with schemas and settings; `groups`; `records`,
with dead letters and transactions; `brokers`, with programs that try a cluster, tables and jobs.
"""

from tests.conformance.kafka4.walks import brokers, groups, records, topics
from tests.conformance.kafka4.walks.place import WALKS, Place

__all__ = ["WALKS", "Place", "brokers", "groups", "records", "topics"]
