"""The feature level of a cluster: what its brokers may write to the tree, to internal topics and to each other.

A level is raised by command, once every broker supports it, and never goes down. Below a level, nothing is written that
the releases of the level before cannot read.

| level | brokers from then on |
|---|---|
| 0 | write what the release before feature levels reads; a cluster that was never raised |
| 1 | keep that release out: it does not start, and cannot become the controller |
| 2 | serve groups of the consumer protocol, whose records are in `__consumer_offsets`; Kafka's `group.version` is 1 |
| 3 | serve share groups with records there and in `__share_group_state`, and settings of groups; `share.version` 1 |
| 4 | obey brokers only that prove that they read the same store; may have listeners beside `PLAINTEXT` |

Broker releases tell the levels that they support when they register; the release before tells none, and supports 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PYLOG_VERSION = "pylog.version"


class Levels(NamedTuple):
    """The levels that a release supports; `last` is included."""

    first: int
    last: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.first <= level <= self.last

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


NO_LEVELS = Levels(0, 0)  # of a registration without levels
SUPPORTED = Levels(0, 4)  # by this release


CONSUMER_GROUPS = 2  # the first level with groups of the consumer protocol (KIP-848)
SHARE_GROUPS = 3  # the first level with share groups (KIP-932), and with settings of groups
PROVED_BROKERS = 4  # the first level at which brokers prove themselves, and may have more than one listener
# Kafka's features whose level 1 comes with one of these levels.
COMES_WITH = {"group.version": CONSUMER_GROUPS, "share.version": SHARE_GROUPS}


class Finalized(NamedTuple):
    """The level of the cluster. `epoch` counts how often it was raised."""

    level: int = 0
    epoch: int = 0


class Update(NamedTuple):
    """A wish of somebody: `is_upgrade` is false for a downgrade, None for a kind that is not known."""

    feature: str
    level: int
    is_upgrade: bool | None = True


def refusal_to_join(broker: int, levels: Levels, finalized: int) -> str | None:
    """Return why a broker with these levels takes no part in the cluster, and what to do; None: it does."""
    if finalized in levels:
        return None
    said = f"broker {broker} supports {PYLOG_VERSION} {levels}, and the cluster is at level {finalized}"
    if finalized > levels.last:
        return f"{said}: install the release with which it was raised, or a later one"
    return (
        f"{said}: start an earlier release first, and raise the level with "
        f"`pylog features upgrade --level {levels.first}`"
    )


def refusal_to_update(
    update: Update, finalized: Mapping[str, int], own: Mapping[str, Levels], brokers: Mapping[int, Levels]
) -> str | None:
    """Return why a feature may not be updated, in the words of Kafka 4.4; None: it may.

    `finalized` and `own` are the levels of this cluster, and those that this broker supports, by the name of their
    feature; `brokers` the levels of `pylog.version` that each registered broker supports.
    """
    name, level = update.feature, update.level
    levels, now = own.get(name, NO_LEVELS), finalized.get(name, 0)
    lacking = {b: known for b, known in sorted(brokers.items()) if name == PYLOG_VERSION and level not in known}
    reason = None
    if update.is_upgrade is None:
        reason = "The controller does not support the given upgrade type."
    elif level < 0:
        reason = "A feature version cannot be less than 0."
    elif level not in levels:
        reason = f"This broker {_support(levels)}"
    elif level < now:
        reason = "Can't downgrade the version of this feature: a level that was raised stays."
    elif level > now and not update.is_upgrade:
        reason = "Can't downgrade to a newer version."
    elif lacking:
        reason = " ".join(f"Broker {broker} {_support(known)}" for broker, known in lacking.items())
    return reason and f"Invalid update version {level} for feature {name}. {reason}"


def _support(levels: Levels) -> str:
    if levels.last == 0:
        return "does not support this feature."
    return f"only supports versions {levels.first}-{levels.last}."
