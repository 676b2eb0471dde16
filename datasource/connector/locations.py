"""Where the topics of a query live: a directory (option `path`) or a cluster (`kafka.bootstrap.servers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasource.topics import ReadableTopics, WritableTopics, reading, writing
from logstore import InvalidConfigError

if TYPE_CHECKING:
    from datasource.cluster_topics import GroupPositions
    from datasource.connector.options import ReadOptions, WriteOptions
    from logstore.log.isolation import Isolation


def to_read(
    options: ReadOptions | WriteOptions,
    isolation: Isolation = "read_committed",
    *,
    short_circuit: bool = False,
    rack: str = "",
) -> ReadableTopics:
    """The topics, to read. Raises: NotAStoreError; InvalidConfigError: what a cluster needs is not installed."""
    return (
        _cluster(options.bootstrap, isolation, short_circuit=short_circuit, rack=rack)
        if options.bootstrap
        else reading(options.path, isolation=isolation)
    )


def to_write(options: WriteOptions) -> WritableTopics:
    """The topics, to write. Raises: as `to_read`; StoreLockedError: a broker has the directory."""
    return _cluster(options.bootstrap, "read_committed") if options.bootstrap else writing(options.path)


def group_of(options: ReadOptions) -> GroupPositions | None:
    """The group of a read over a cluster, if it has one."""
    if not options.group:
        return None
    from datasource.cluster_topics import GroupPositions, client_of

    return GroupPositions(client_of(options.bootstrap), options.group)


def _cluster(
    bootstrap: str, isolation: Isolation, *, short_circuit: bool = False, rack: str = ""
) -> WritableTopics:
    try:
        from datasource.cluster_topics import of_cluster  # loads the protocol, which a directory needs not
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"option 'kafka.bootstrap.servers' needs the package {error.name}: pip install 'pyspark-pylog[cluster]' "
            "on every machine of Spark",
            option="kafka.bootstrap.servers",
        ) from error
    return of_cluster(bootstrap, isolation=isolation, short_circuit=short_circuit, rack=rack)
