"""A test that speaks as a broker: it proves that it reads the coordination store, as brokers do."""

import asyncio

from logstore.env import SYSTEM
from replication.coordination import open_tree
from replication.coordination.broker_secret import read_secret
from replication.protocol.apis import ApiKey
from replication.security.proof import MECHANISM, Prover

BROKER = 99


def prove(ask, secret, broker=BROKER):
    """Prove it on a connection; `ask` sends a request (API, version, body) there and returns the answer."""
    prover = Prover(broker, secret, "n" * 48)
    assert ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": MECHANISM}).error_code == 0
    begun = ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": prover.first})
    assert ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": prover.final(bytes(begun.auth_bytes))}).error_code == 0


def secret_of(coordination):
    """The secret of a cluster whose store is there."""

    async def read():
        tree = await open_tree(coordination, on_session=lambda event: None, create=False)
        try:
            return await read_secret(tree, SYSTEM)
        finally:
            await tree.close()

    return asyncio.run(read())
