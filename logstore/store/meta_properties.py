"""The file meta.properties of a store directory: its format version and id, and the broker that owns it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

from logstore import checkpoint
from logstore.env import Env
from logstore.errors import NotAStoreError

FORMAT_VERSION = 1
META = "meta.properties"
BROKER_ID, CLUSTER_ID = _OWNED = "broker.id", "cluster.id"


class DirectoryOwner(NamedTuple):
    broker_id: int
    cluster_id: str


def owner_of(path: Path, env: Env) -> DirectoryOwner | None:
    """The broker that owns the store at `path`, if any."""
    properties = _properties(env, path / META)
    broker_id = properties.get(BROKER_ID, "").strip()
    return DirectoryOwner(int(broker_id), properties.get(CLUSTER_ID, "").strip()) if broker_id.isdecimal() else None


def is_kafkas(path: Path, env: Env) -> bool:
    """True if a Kafka made the directory: its meta.properties name a node, and nothing in it is pylog's."""
    found = _properties(env, path / META)
    is_named = "node.id" in found or "broker.id" in found  # before 0.10.1 there was no cluster.id
    return is_named and "pylog.format" not in found and env.files.stat(path / "topics") is None


def _properties(env: Env, path: Path) -> dict[str, str]:
    try:
        lines = env.files.read_all(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def check_version(env: Env, path: Path) -> None:
    """Raises: NotAStoreError: the file is damaged, or of a later release."""
    version = _properties(env, path / META).get("pylog.format", "").strip()
    if not version.isdecimal():
        raise NotAStoreError(
            f"{path / META} has no pylog.format: this is not a pylog store, or the file is damaged; "
            f"if it is one, add the line pylog.format={FORMAT_VERSION}"
        )
    if int(version) > FORMAT_VERSION:
        raise NotAStoreError(
            f"{path} has format {version}; this version of pylog knows up to {FORMAT_VERSION}: upgrade pylog"
        )


def make(env: Env, path: Path) -> None:
    """Make what a store has from its first moment on, where it is missing. Under the lock."""
    with checkpoint.marking_failure(env, path):
        if env.files.stat(path / META) is None:
            checkpoint.make_directory(env, path)
            text = f"version=0\npylog.format={FORMAT_VERSION}\ndirectory.id={uuid.uuid4()}\n"
            checkpoint.write_atomic(env, path / META, text.encode())
        topics = path / "topics"
        if env.files.stat(topics) is None:
            checkpoint.make_directory(env, topics)


def write_owner(env: Env, path: Path, owner: DirectoryOwner) -> None:
    known = _properties(env, path / META).items()
    lines = "".join(f"{key}={value}\n" for key, value in known if key not in _OWNED)
    lines += f"{BROKER_ID}={owner.broker_id}\n{CLUSTER_ID}={owner.cluster_id}\n"
    with checkpoint.marking_failure(env, path):
        checkpoint.write_atomic(env, path / META, lines.encode())
