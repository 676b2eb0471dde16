"""Stray directories: partitions of a stand-alone store that belong to no topic.

A description is written after the directories and before the first record, and removed after the deletion is recorded.
So a directory without records may be of a topic on its way, or of a creation that was killed. One with records has lost
its description, which no crash does: that is damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import TEMPORARY_SUFFIX
from logstore.env import SYSTEM, Env
from logstore.errors import StoreError
from logstore.log.segments.directory import topic_id_of
from logstore.log.segments.names import CLEANER_LOCK, DELETED_PARTITION, INDEX_FILE, LOCK, LOG_FILE, METADATA, PARTITION
from logstore.store.catalog import Catalog
from logstore.store.log_dir import LogDir
from logstore.store.meta_properties import is_kafkas, owner_of

# Directories are made before the catalog lists their topic: a young one may belong to a topic that is on its way.
YOUNG_MS = 60_000


class LostDescriptionError(StoreError):
    """A topic has records and no description."""

    topic: str
    path: str


class Unowned(NamedTuple):
    """Directories of no topic and no unfinished deletion, in the order of topics and partitions."""

    lost: tuple[Path, ...] = ()  # hold records that no topic lists
    empty: tuple[Path, ...] = ()  # hold nothing
    others: tuple[Path, ...] = ()  # what is left of a deletion, and whatever has files that are not ours


def unowned(root: Path, env: Env = SYSTEM, *, young_too: bool = False) -> Unowned:
    """Return the stray directories; without `young_too`, no empty ones that a creation may just be making."""
    if owner_of(root, env) is not None or is_kafkas(root, env):
        return Unowned()  # a broker's: it has replicas of topics that its catalog does not know
    left = _without_topic(root, env.files.list(root).names, env)
    if not left:
        return Unowned()
    ids = {path: topic_id_of(path, env) for path in left}
    points = LogDir(root, read_only=True, env=env).recovery_points.read()
    held = [path for path in left if _holds_records(path, ids[path], points, env)]
    # A topic may have come, or gone, between the looks at the directories and at the catalog. A directory that has
    # records now, and no topic afterwards, has lost it, unless it went with its topic.
    still = _without_topic(root, [path.name for path in held], env)
    lost = [path for path in still if topic_id_of(path, env) == ids[path] and _exists(path, env)]
    rest = [path for path in left if path not in held and (young_too or _is_old(path, env))]
    empty = {path for path in rest if _is_empty(path, env)}
    # The empty directories of a topic that has records elsewhere are missed when its description is there again.
    topics = {_topic_of(path) for path in held}
    return Unowned(
        lost=tuple(lost),
        empty=tuple(path for path in rest if path in empty and _topic_of(path) not in topics),
        others=tuple(path for path in rest if path not in empty),
    )


def lost_descriptions(root: Path, env: Env) -> list[LostDescriptionError]:
    """Return an error for every topic that has records and no description."""
    found = []
    for topic, directories in groupby(unowned(root, env).lost, key=_topic_of):
        file, names = root / "topics" / f"{topic}.json", [path.name for path in directories]
        held = f"{names[0]} holds records"
        if len(names) > 1:
            held = f"{len(names)} directories, from {names[0]} to {names[-1]}, hold records"
        if env.files.stat(file) is None:
            text = f"is missing, and {held}; bring it back from a copy, and create no topic of this name before"
        else:
            text = f"is not of all that is there: {held}; see `pylog dump-log`, and remove what is not missed"
        found.append(LostDescriptionError(f"{file} {text}", topic=topic, path=str(file)))
    return found


def _topic_of(directory: Path) -> str:
    found = _match(directory.name)
    return found[1] if found else directory.name


def _match(name: str) -> re.Match[str] | None:
    return PARTITION.fullmatch(name) or DELETED_PARTITION.fullmatch(name)


def _without_topic(root: Path, names: Iterable[str], env: Env) -> list[Path]:
    """Return the directories that belong to no topic. Reads the catalog, then the deletions."""
    catalog = Catalog(root / "topics", env)
    topics = {info.name: info for info in catalog.topics()}
    going = {info.topic_id for info, _ in catalog.deletions()}

    def is_owned(name: str) -> bool:
        if hidden := DELETED_PARTITION.fullmatch(name):
            return hidden[3] in going
        found = PARTITION.fullmatch(name)
        if found is None:
            return True  # none of ours
        info = topics.get(found[1])
        # One that is called after a partition of the topic and is another's is that partition's damage.
        stays = info is not None and (info.damage is not None or int(found[2]) < info.partitions)
        return stays or topic_id_of(root / name, env) in going

    return [root / n for n in sorted(names, key=_order) if _exists(root / n, env) and not is_owned(n)]


def _order(name: str) -> tuple[str, int, str]:
    found = _match(name)
    return (found[1], int(found[2]), name) if found else (name, 0, name)


def _exists(path: Path, env: Env) -> bool:
    return env.files.stat(f"{path}/.") is not None


def _is_old(path: Path, env: Env) -> bool:
    stat = env.files.stat(path)
    return stat is not None and env.clock.now_ms() - stat.mtime_ns // 1_000_000 >= YOUNG_MS


def _holds_records(path: Path, topic_id: str | None, points: Mapping[tuple[str, int], int], env: Env) -> bool:
    """True if a partition has records, or had some that were flushed.

    A directory named as deleted counts, if it was renamed because it was in the way of a new topic, whose id it has.
    """
    if hidden := DELETED_PARTITION.fullmatch(path.name):
        if topic_id in (None, hidden[3]):
            return False
    elif (found := PARTITION.fullmatch(path.name)) and points.get((found[1], int(found[2])), 0) > 0:
        return True
    return any(size_bytes for name, size_bytes in _sizes(path, env) if LOG_FILE.fullmatch(name))


def _is_empty(path: Path, env: Env) -> bool:
    """True if there is only what a new partition has before its first record."""
    return all(
        name in (METADATA, LOCK, CLEANER_LOCK)
        or (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX))
        or (size_bytes == 0 and (LOG_FILE.fullmatch(name) or INDEX_FILE.fullmatch(name)))
        for name, size_bytes in _sizes(path, env)
    )


def _sizes(path: Path, env: Env) -> list[tuple[str, int]]:
    try:
        names = env.files.list(path).names
    except FileNotFoundError:
        return []
    found = [(name, env.files.stat(path / name)) for name in names]
    return [(name, stat.size) for name, stat in found if stat is not None]
