"""The cost of the rights of small requests, which were asked before, with 1,000 ACLs: CPU time per request.

    python tests/benchmarks/bench_acls.py

"needs" is the part of it that names the rights; "none" a broker without an authorizer.
"""

from __future__ import annotations

import time
import timeit
import uuid
from typing import Any

from replication.broker.needs import needs_of
from replication.model.cluster import topic_id_of
from replication.model.metadata import Metadata
from replication.network.refusals import Part
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, FetchRequest, FetchTopic, ProduceOne
from replication.protocol.small_messages import CommitOne
from replication.security.access import ALLOW_ALL, Authorizer, Context, Operation, Principal, Resource
from replication.security.acl import Entry, Pattern, PatternType
from replication.security.acl_authorizer import AclAuthorizer

ACLS, CALLS, ROUNDS = 1000, 20_000, 40
TOPIC, GROUP = "topic-501-x", "billing"


def authorizer() -> AclAuthorizer:
    made = AclAuthorizer()
    for number in range(ACLS // 2):
        kind = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        entries = [Entry("User:alice", operation) for operation in (Operation.READ, Operation.WRITE)]
        made.put(Pattern(Resource.TOPIC, f"topic-{number}", kind), entries)
    made.put(Pattern(Resource.TOPIC, "topic-501", PatternType.PREFIXED), entries)
    made.put(Pattern(Resource.GROUP, GROUP), [Entry("User:alice", Operation.READ)])
    return made


def requests(topic_id: uuid.UUID) -> dict[str, Part]:
    fetch = FetchRequest(0, 1, (FetchTopic(TOPIC, topic_id, (FetchPartition(0, 0, 1 << 20),)),))
    produce = ProduceOne(-1, 1000, (TOPIC, 0), b"", topic_id)
    return {
        "Produce 9": Part(ApiKey.PRODUCE, 9, produce),
        "Produce 13, by id": Part(ApiKey.PRODUCE, 13, produce),
        "Fetch 11": Part(ApiKey.FETCH, 11, fetch),
        "Fetch 17, by id": Part(ApiKey.FETCH, 17, fetch),
        "OffsetCommit 9": Part(ApiKey.OFFSET_COMMIT, 9, CommitOne(GROUP, 1, "m", -1, (TOPIC, 0), 7, -1)),
    }


def cost_ns(authorizer: Authorizer, needs: Any, request: Part) -> float:
    context = Context("127.0.0.1", 7, Principal("alice"))
    assert not authorizer.refused(context, needs, request)
    timed = timeit.repeat(
        lambda: authorizer.refused(context, needs, request), number=CALLS, repeat=ROUNDS, timer=time.process_time
    )
    return min(timed) / CALLS * 1e9


def main() -> None:
    topic_id, metadata = uuid.uuid4(), Metadata()
    metadata.note_leaders((), [(topic_id_of(topic_id), TOPIC)])
    known, acls = needs_of(metadata), authorizer()
    print(f"{'':20}{'none':>8}{'needs':>8}{'ACLs':>8}  ns")
    for name, request in requests(topic_id).items():
        needs = known[request.key]
        alone = min(timeit.repeat(lambda: needs(request), number=CALLS, repeat=ROUNDS, timer=time.process_time))  # noqa: B023
        row = cost_ns(ALLOW_ALL, needs, request), alone / CALLS * 1e9, cost_ns(acls, needs, request)
        print(f"{name:20}" + "".join(f"{value:8.0f}" for value in row))


if __name__ == "__main__":
    main()
