"""The log of a Delta table, entry by entry: what a commit did, and what RESTORE undid.

::

    _delta_log/00000000000000000007.json                  version 7: a line of JSON per action
    _delta_log/00000000000000000010.checkpoint….parquet   everything up to version 10; older entries may be removed
    _delta_log/_sidecars/….parquet                        parts of checkpoints
    _delta_log/_last_checkpoint                           a hint

RESTORE adds a version with the files of an earlier one. The transactions of the versions between stay, although their
rows are gone. So the history of a table is not its versions from first to last, but the way back from the newest, which
at each RESTORE jumps to the version that was brought back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from datasource.delta.storage import TableStorage
from logstore.errors import StoreError

LOG = "_delta_log"
RESTORE = "RESTORE"
UNKNOWN = -1  # RESTORE to a time does not name the version

_VERSIONED = re.compile(r"(\d{20})\.(json|checkpoint\..*)")
_SIDECARS, _LAST_CHECKPOINT = "_sidecars", "_last_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of one commit; `restored` is the version that a RESTORE brought back, None for other operations."""

    restored: int | None
    transactions: Mapping[str, int]
    files: int
    size_bytes: int
    records: int


Look = Callable[[int], Entry | None]


def entry(table: TableStorage, version: int) -> Entry | None:
    """Return what the commit of this version did; None: Delta removed its entry, as it does with old ones.

    Raises: StoreError: the entry cannot be read.
    """
    name = _name(version)
    try:
        actions = [json.loads(line) for line in table.read(name).splitlines() if line.strip()]
        return _entry(actions)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{table / name} is damaged: {error}; copy the table back from a backup") from error


def identity_of(table: TableStorage, version: int) -> Hashable | None:
    """Return the identity of the entry of this version; None: there is none, or no longer."""
    return table.identity(_name(version))


def exists(table: TableStorage) -> bool:
    """Is there a log?"""
    return any(_VERSIONED.fullmatch(name) for name in table.names(LOG))


def _name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _entry(actions: list[dict[str, Any]]) -> Entry:
    info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    adds = [action["add"] for action in actions if "add" in action]
    return Entry(
        restored=_restored(info) if info.get("operation") == RESTORE else None,
        transactions={a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a},
        files=len(adds),
        size_bytes=sum(add["size"] for add in adds),
        records=sum(json.loads(add.get("stats") or "{}").get("numRecords", 0) for add in adds),
    )


def _restored(info: Mapping[str, Any]) -> int:
    """Return the version that was brought back; Spark writes it as a number, deltalake as text."""
    version = info.get("operationParameters", {}).get("version")
    return int(version) if version not in (None, "") else UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A RESTORE that took rows away which transactions still claim. `whole`: a version that has them all."""

    version: int
    restored: int
    whole: int | None


def undone(look: Look, *, since: int, head: int, prefix: str) -> Undone | None:
    """Return the RESTORE that took away rows of commits with transactions of this prefix; None: all rows are there.

    The history up to version `since` was checked before. Entries that Delta removed since then count as good.
    """
    for restore, restored in _jumps(look, since=since, head=head):
        if any(_is_ours(look(version), prefix) for version in range(restored + 1, restore)):
            return Undone(version=restore, restored=restored, whole=_whole(look, head, prefix))
    return None


def _jumps(look: Look, *, since: int, head: int) -> Iterator[tuple[int, int]]:
    """Yield the RESTOREs on the way back from `head`, each with the version that it brought back."""
    version, has_jumped = head, False
    while version > (0 if has_jumped else since) and (found := look(version)) is not None:
        if found.restored is None:
            version -= 1
        else:
            yield version, found.restored
            version, has_jumped = min(found.restored, version - 1), True


def _is_ours(found: Entry | None, prefix: str) -> bool:
    """Did it add rows of the topic? An entry that was removed may have."""
    return found is None or (found.files > 0 and any(name.startswith(prefix) for name in found.transactions))


def _whole(look: Look, head: int, prefix: str) -> int | None:
    """Return the newest version before a RESTORE that has all rows of the topic up to `head`; None: there is none."""
    version = head
    while version > 0 and (found := look(version)) is not None and not _is_ours(found, prefix):
        version -= 1
        if found.restored is not None and undone(look, since=0, head=version, prefix=prefix) is None:
            return version
    return None


def make_durable(table: TableStorage, *, since: int) -> None:
    """Make the entries and checkpoints above version `since` durable: neither deltalake nor Delta's own writer does."""
    table.make_durable(_above(table, since), [LOG], missing_ok=True)  # a newer entry contains one that was removed


def _above(table: TableStorage, since: int) -> Iterator[str]:
    versions = ((name, _VERSIONED.fullmatch(name)) for name in table.names(LOG))
    names = [name for name, found in versions if found and int(found[1]) > since]
    yield from (f"{LOG}/{name}" for name in names)
    if any(".checkpoint." in name for name in names):
        yield f"{LOG}/{_LAST_CHECKPOINT}"
        yield from (f"{LOG}/{_SIDECARS}/{name}" for name in table.names(f"{LOG}/{_SIDECARS}"))
