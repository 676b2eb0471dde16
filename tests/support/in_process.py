"""Three whole brokers in one process, on a loop in a thread: so that a test can hold one of them up where it wants."""

import asyncio
import threading
from contextlib import contextmanager

from logstore.env import SYSTEM
from logstore.store.description import new_topic_id
from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, open_tree


class InProcess:
    """The brokers by their numbers, and where clients find the first."""

    def __init__(self, loop, brokers):
        self.loop, self.brokers = loop, brokers

    @property
    def bootstrap(self):
        return str(self.brokers[1].endpoint)

    def do(self, work, timeout_s=60):
        """Have it done on the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)


async def begun_by_an_earlier_release(coordination):
    """Make the tree of a cluster that is at level 0."""
    tree = await open_tree(coordination, on_session=lambda event: None)
    await cluster.read_cluster_id(tree, new_topic_id())
    await tree.close()


@contextmanager
def brokers_in_process(directory, numbers=(1, 2, 3), env=SYSTEM, **properties):
    """Brokers that share one event loop and one SQLite tree."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = InProcess(loop, {})
    try:
        for number in numbers:
            config = BrokerConfig.from_properties(
                {
                    "broker.id": number,
                    "log.dirs": str(directory / f"broker-{number}"),
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "coordination": f"sqlite:{directory / 'tree.db'}",
                    "num.io.threads": 2,
                    "produce.base.offset.strict": "true",
                    "auto.leader.rebalance.enable": "false",
                    "controlled.shutdown.enable": "false",  # all of them stop
                    "offsets.topic.num.partitions": 5,
                    "transaction.state.log.num.partitions": 5,
                    **{key if "." in key else key.replace("_", "."): value for key, value in properties.items()},
                }
            )
            made.brokers[number] = Broker(config, env)
            made.do(made.brokers[number].start())
        yield made
    finally:
        for broker in reversed(made.brokers.values()):
            made.do(broker.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
