"""Assignors: from what each member subscribes to, and has now, to what it is to have.

`wishes` are what assignors know of members; `uniform` and `range_by_topic`, Kafka's assignors of these names.

Law: a partition is assigned to one member that subscribes to its topic, if there is any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from replication.coordinators.groups.consumer.assignors.range_by_topic import assign_ranges
from replication.coordinators.groups.consumer.assignors.uniform import assign_uniformly
from replication.coordinators.groups.consumer.assignors.wishes import Wish
from replication.coordinators.groups.pieces import Pieces

# From the wishes by member, and the partitions by topic id.
Assignor: TypeAlias = Callable[[Mapping[str, Wish], Mapping[str, int]], Mapping[str, Pieces]]
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
