"""The end of a partition, at little cost, is that of its extent."""

import pyarrow as pa

from datasource.topics.locations import Location


def test_next_offsets_are_the_ends_of_extents(cluster):
    name = cluster.create((1, 2, 3), (2, 3, 1))
    topics = Location(bootstrap=cluster.running.bootstrap).read()
    assert topics.next_offsets(name, [0, 1]) == {0: 0, 1: 0}
    rows = pa.table({"value": ["a", "b", "c"], "partition": pa.array([0, 1, 1], pa.int32())})
    Location(bootstrap=cluster.running.bootstrap).cluster().append(
        name, rows, partitioner="sticky", compression=None, transaction=None
    )
    cluster.until(lambda: topics.next_offsets(name, [0, 1]) == {0: 1, 1: 2})
    assert topics.next_offsets(name, [1]) == {1: topics.extent(name, 1).end}
