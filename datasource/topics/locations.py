"""Where topics live: in a directory (option `path`), or on the brokers of a cluster (`kafka.bootstrap.servers`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.config import Isolation
from logstore.errors import InvalidConfigError
from replication.client.registry_settings import RegistrySettings
from replication.client.security import PLAINTEXT, Security

if TYPE_CHECKING:
    from datasource.topics.cluster import ClusterTopics, GroupPositions
    from datasource.topics.interface import ReadableTopics, WritableTopics


@dataclass(frozen=True, slots=True)
class Location:
    """A directory, or the addresses of a cluster: the other one is "". `rack` is the reader's, "" for none."""

    path: str = ""
    bootstrap: str = ""
    rack: str = ""
    security: Security = PLAINTEXT
    registry: RegistrySettings | None = None  # None: schemas are in the topic `_schemas`

    @property
    def options(self) -> dict[str, str]:
        """The options that name it to Spark, passwords included."""
        schemas = dict(self.registry.settings) if self.registry else {}
        if self.path:
            return {"path": self.path, **schemas}
        named = {"bootstrap.servers": self.bootstrap, **self.security.settings}
        return {f"kafka.{name}": value for name, value in named.items()} | schemas

    @property
    def name(self) -> str:
        """How a person knows it: the absolute path, or the addresses."""
        return os.path.abspath(self.path) if self.path else self.bootstrap  # noqa: PTH100 - links stay

    def read(self, isolation: Isolation = "read_committed", *, short_circuit: bool = False) -> ReadableTopics:
        """The topics, to read. Raises: NotAStoreError; InvalidConfigError: what a cluster needs is not installed."""
        if self.path:
            from datasource.topics.directory import DirectoryTopics

            return DirectoryTopics(self.path, isolation, self.registry)
        return self.cluster(isolation, short_circuit=short_circuit)

    def write(self) -> WritableTopics:
        """The topics, to write. Raises: as `read`; StoreLockedError: a broker has the directory."""
        if self.path:
            from datasource.topics.directory import WritableDirectory

            return WritableDirectory(self.path)
        return self.cluster()

    def cluster(self, isolation: Isolation = "read_committed", *, short_circuit: bool = False) -> ClusterTopics:
        """The topics of the cluster. Raises: InvalidConfigError: what a cluster needs is not installed."""
        try:
            # Loads the protocol, which a directory needs not.
            from datasource.topics.cluster import ClusterTopics, client_of
        except ModuleNotFoundError as error:
            raise InvalidConfigError(
                f"option 'kafka.bootstrap.servers' needs the package {error.name}: pip install "
                "'pyspark-pylog[cluster]' on every machine of Spark",
                option="kafka.bootstrap.servers",
            ) from error
        client = client_of(self.bootstrap, self.rack, self.security, self.registry)
        return ClusterTopics(client, isolation, short_circuit=short_circuit)

    def group(self, name: str) -> GroupPositions:
        from datasource.topics.cluster import GroupPositions, client_of

        return GroupPositions(client_of(self.bootstrap, self.rack, self.security), name)


def location_at(place: str | os.PathLike[str]) -> Location:
    """The cluster of `HOST:PORT,...`, else the directory of this path. A relative path is that of this process."""
    text = os.fspath(place).strip()
    if re.fullmatch(r"[^/\s,]+:\d+(\s*,\s*[^/\s,]+:\d+)*", text):
        return Location(bootstrap=text)
    return Location(path=text if re.match("(?i)file:/", text) else os.path.abspath(text))  # noqa: PTH100 - links stay
