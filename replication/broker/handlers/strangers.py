"""Strangers: who guesses the epochs of brokers does not do so for long on one connection.

A wrong epoch is answered as such: it is normal after a failover. A connection that brings WRONG_MAX of them is closed,
which is one line in the log; brokers that were wrong so often come back with a new one.
"""

from __future__ import annotations

from collections import OrderedDict

from replication.errors import ProtocolError
from replication.network.request import RequestContext

WRONG_MAX = 10
CONNECTIONS_MAX = 10_000  # of which is noted how often they were wrong; the oldest notes go


class Strangers:
    """See the module. One for all handlers of a broker."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[int, int] = OrderedDict()

    def note_wrong(self, context: RequestContext) -> None:
        """This request named a wrong epoch of a broker. Raises: ProtocolError: it was the last on its connection."""
        count = self._wrong.pop(context.connection_id, 0) + 1
        if count >= WRONG_MAX:
            raise ProtocolError(
                f"{count} requests of brokers, the last {context.key.name}, with an epoch that no broker has"
            )
        self._wrong[context.connection_id] = count
        if len(self._wrong) > CONNECTIONS_MAX:
            self._wrong.popitem(last=False)
