"""WrongEpochs: limits how often a connection may name a wrong broker epoch, so that nobody guesses one.

A wrong epoch is answered as such: it is normal after a failover. A connection that names WRONG_MAX of them is closed,
with one line in the log; a broker that was wrong so often returns with another connection.
"""

from __future__ import annotations

from collections import OrderedDict

from replication.errors import ProtocolError
from replication.network.work import Work
from replication.security.access import OWN_CONNECTION

WRONG_MAX = 10
CONNECTIONS_MAX = 10_000  # counted; the oldest counts go


class WrongEpochs:
    def __init__(self) -> None:
        self._wrong: OrderedDict[int, int] = OrderedDict()

    def count(self, context: Work) -> None:
        """Count a wrong epoch. Raises: ProtocolError: it was the last on this connection."""
        if context.connection_id == OWN_CONNECTION:
            return
        count = self._wrong.pop(context.connection_id, 0) + 1
        if count >= WRONG_MAX:
            raise ProtocolError(
                f"{count} requests of brokers, the last {context.key.name}, with an epoch that no broker has"
            )
        self._wrong[context.connection_id] = count
        if len(self._wrong) > CONNECTIONS_MAX:
            self._wrong.popitem(last=False)
