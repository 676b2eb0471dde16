"""Where in a topic the last batch of a run begins, if each batch writes all that lives there: nothing older is read.

A record lives while it has a value and no later one of its key in its partition. All that lives is in the last batch if
that was so before, since a batch writes each key again, where its partition is chosen by the key, or deletes it. It is
looked up once in a run: the run before may have written with fewer partitions, and a run's first batch may be one that
is in the topic already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datasource.topics.interface import epoch_of
from logstore import OffsetRange


@dataclass(frozen=True, slots=True)
class Written:
    """A batch of a run, and the extents of the topic's partitions just before it was written.

    `has_all`: nothing that lives after the batch is older than it.
    """

    run: str
    batch: int
    topic_id: str
    extents: Mapping[int, OffsetRange]
    has_all: bool = False

    def starts(self, before: Written | None) -> dict[int, int] | None:
        """By partition, the offset from which on there is what `before` wrote, and all after it.

        None: `before` is not the batch before this one, of this run; or a partition is new, to which keys move; or
        another leader may have cut one.
        """
        if (
            before is None
            or not self.run
            or (self.run, self.batch - 1, self.topic_id) != (before.run, before.batch, before.topic_id)
            or self.extents.keys() != before.extents.keys()
            or not all(_is_longer(self.extents[p], extent) for p, extent in before.extents.items())
        ):
            return None
        return {p: max(extent.end, self.extents[p].start) for p, extent in before.extents.items()}


def _is_longer(now: OffsetRange, before: OffsetRange) -> bool:
    return now.end >= before.end and epoch_of(now) == epoch_of(before)


def is_all(oldest: Mapping[int, int], starts: Mapping[int, int]) -> bool:
    """Whether nothing is older than the starts; `oldest`: by partition, the least offset of what lives."""
    return all(partition in starts and offset >= starts[partition] for partition, offset in oldest.items())
