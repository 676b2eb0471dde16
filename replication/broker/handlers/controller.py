"""What a controller tells this broker, and what brokers ask of it while it is the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode as WireCode

from replication.broker.handlers.strangers import Strangers
from replication.controller.driver import ControlledShutdownError, ControllerLoop, StaleBrokerError
from replication.errors import ErrorCode
from replication.model.cluster import NO_EPOCH
from replication.network.request import Handler, RequestContext
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.replica.manager import ReplicaManager


class InterHandlers:
    """See the module."""

    def __init__(self, replicas: ReplicaManager, controller: ControllerLoop, strangers: Strangers) -> None:
        self._replicas = replicas
        self._controller = controller
        self._strangers = strangers

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {
            ApiKey.LEADER_AND_ISR: self.obey,
            ApiKey.STOP_REPLICA: self.obey,
            ApiKey.UPDATE_METADATA: self.obey,
            ApiKey.CONTROLLED_SHUTDOWN: self.shut_down,
        }

    async def obey(self, context: RequestContext, body: Any) -> Any:
        """Do what a controller says, if it is one: see `replication.replica.machine.leadership`."""
        if NO_EPOCH != self._replicas.broker_epoch != body.broker_epoch:
            self._strangers.note_wrong(context)
        return await obey(self._replicas, body, context.correlation_id)

    async def shut_down(self, context: RequestContext, body: Any) -> ib.ControlledShutdownResponse:
        """A broker wants to stop: hand its leaderships over; the answer says what it leads still."""
        try:
            remaining = await self._controller.shut_down(body.broker_id, body.broker_epoch)
        except ControlledShutdownError:
            return _not_handed_over(ErrorCode.NOT_CONTROLLER)
        except StaleBrokerError:
            self._strangers.note_wrong(context)
            return _not_handed_over(ErrorCode.STALE_BROKER_EPOCH)
        rows = tuple(
            ib.RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in remaining
        )
        return ib.ControlledShutdownResponse(error_code=WireCode(ErrorCode.NONE), remaining_partitions=rows)


def _not_handed_over(code: ErrorCode) -> ib.ControlledShutdownResponse:
    return ib.ControlledShutdownResponse(error_code=WireCode(code), remaining_partitions=())


async def obey(replicas: ReplicaManager, body: Any, correlation_id: int) -> Any:
    """Have a controller's request obeyed; return the answer."""
    match body:
        case ib.LeaderAndIsrRequest():
            return await replicas.become(body, correlation_id)
        case ib.StopReplicaRequest():
            return await replicas.stop(body, correlation_id)
        case _:
            return await replicas.update_metadata(body, correlation_id)
