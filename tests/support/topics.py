"""Topics as the tree of a cluster describes them."""

from __future__ import annotations

from collections.abc import Mapping

from logstore import TopicDescription
from replication.model.cluster import UNCLEAN


def described(
    replicas: Mapping[int, tuple[int, ...]], topic_id: str, *, name: str = "t", unclean: bool = False
) -> TopicDescription:
    overrides = {UNCLEAN: "true"} if unclean else {}
    return TopicDescription(
        name=name, topic_id=topic_id, partitions=len(replicas), overrides=overrides, replicas=replicas
    )
