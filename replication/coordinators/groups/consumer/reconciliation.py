"""Reconciliation: the next assignment of one member on its way to its target.

Laws: a member gets a partition only while nobody else holds it, and holds one until it says that it gave it up. It
keeps its epoch until it has given up all that it must. A member that reads less than it may has not taken in its last
answer yet: it may be about to take what it does not name, so it has given up nothing. (Kafka believes it.)
A piece keeps its assignment epoch as long as the member holds it, and if one that begins anew gets it back at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replication.coordinators.groups.consumer.state import Current, Progress
from replication.coordinators.groups.parts.state import JOINING
from replication.coordinators.groups.pieces import Piece, Pieces


def reconciled(
    current: Current,
    target: Pieces,
    target_epoch: int,
    owned: Pieces | None,
    is_free: Callable[[Piece], bool],
) -> Current:
    """Return the next assignment; `owned` is what the member says that it reads, None: as before.

    `is_free`: no other member holds this piece.
    """
    if current.progress is Progress.REVOKING and not _has_given_up(current.revoking, current.assigned, owned):
        return current
    if current.progress is Progress.STABLE and current.epoch == target_epoch:
        return current
    kept = current.assigned & target
    revoking = current.assigned - kept  # what it gave up before is free
    is_back = current.epoch == JOINING  # as another process, which reads nothing
    if revoking and not is_back and not (kept and _has_given_up(revoking, kept, owned)):
        return replace(current.holding(kept, revoking), previous_epoch=current.epoch, progress=Progress.REVOKING)
    wanted = target - kept
    given = frozenset(piece for piece in wanted if is_free(piece))
    return Current(
        epoch=target_epoch,
        previous_epoch=current.epoch,
        progress=Progress.STABLE if given == wanted else Progress.WAITING,
        assigned=kept | given,
        since={piece: current.since.get(piece, target_epoch) for piece in kept | given},
    )


def _has_given_up(revoking: Pieces, kept: Pieces, owned: Pieces | None) -> bool:
    return owned is not None and owned >= kept and not owned & revoking
