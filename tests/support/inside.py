"""Ways into private parts of the product, one for each: what a test holds up, breaks or counts has no public name.

A test that needs another part asks first whether an argument of the product would do.
`tests/architecture/test_habits.py` counts the uses of private names.
"""


def storage(replicas):
    """The disk, the directory and the configs of a broker's replicas (`.disk`, `.dir`)."""
    return replicas._set


def fetchers(replicas):
    """The connections over which a broker follows others."""
    return replicas._fetchers


def write_in_threads(replicas):
    """Have the event loop write nothing, however quick the disk is."""
    storage(replicas).disk.begin_write = lambda queue: False


def note_state_changes(replicas, told):
    """Have `told` called with each line for state-change.log."""
    replicas.requests._log_change = told


def going_on_in(shares):
    """The tasks of a broker's SharePartitions."""
    return shares._tasks


def tree_of(broker):
    """The session of a running broker with the coordination store."""
    return broker.lifecycle._tree


def broker_settings(cluster, broker):
    """The settings with which a LocalCluster starts a broker."""
    return cluster._of(broker).settings


def die(store):
    """Let go of what the kernel lets go of when the process dies."""
    store.transactions._holders.release()


def journal_of(store):
    return store.transactions._journal


def open_stores():
    """The stores that this process keeps open for Spark: (path, whether to write) -> ..."""
    from datasource.topics import directory

    return directory._stores


def close_stores():
    while open_stores():
        open_stores().popitem()[1][1].close()


def brokers_of(cluster):
    """The brokers of a LocalCluster by their numbers, with their processes."""
    return cluster._brokers


def loaded_kernels():
    """Whether and since when a broker looks into records by its kernels (`.check`, `.looks`, `.thread`)."""
    from replication.replica.leader import guard

    return guard._loaded
