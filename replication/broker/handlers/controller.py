"""The requests of a controller to this broker, and ControlledShutdown, to this broker as the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode as WireCode

from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.controller.driver import ControlledShutdownError, ControllerLoop, StaleBrokerError
from replication.errors import ErrorCode
from replication.model.cluster import NO_EPOCH
from replication.network.work import Handler, Work
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.replica.requests import ControllerRequests


class InterHandlers:
    def __init__(self, requests: ControllerRequests, controller: ControllerLoop, wrong_epochs: WrongEpochs) -> None:
        self._requests = requests
        self._controller = controller
        self._wrong_epochs = wrong_epochs

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.LEADER_AND_ISR: self.obey,
            ApiKey.STOP_REPLICA: self.obey,
            ApiKey.UPDATE_METADATA: self.obey,
            ApiKey.CONTROLLED_SHUTDOWN: self.shut_down,
        }

    async def obey(
        self, context: Work, body: ib.LeaderAndIsrRequest | ib.StopReplicaRequest | ib.UpdateMetadataRequest
    ) -> Any:
        if NO_EPOCH != self._requests.broker_epoch != body.broker_epoch:
            self._wrong_epochs.count(context)
        return await self._requests.obey(body, context.correlation_id)

    async def shut_down(self, context: Work, body: ib.ControlledShutdownRequest) -> ib.ControlledShutdownResponse:
        """Move the leaderships of a broker that wants to stop; the answer names those that remain."""
        try:
            remaining = await self._controller.shut_down(body.broker_id, body.broker_epoch)
        except ControlledShutdownError:
            return _not_handed_over(ErrorCode.NOT_CONTROLLER)
        except StaleBrokerError:
            self._wrong_epochs.count(context)
            return _not_handed_over(ErrorCode.STALE_BROKER_EPOCH)
        rows = tuple(ib.RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in remaining)
        return ib.ControlledShutdownResponse(error_code=WireCode(ErrorCode.NONE), remaining_partitions=rows)


def _not_handed_over(code: ErrorCode) -> ib.ControlledShutdownResponse:
    return ib.ControlledShutdownResponse(error_code=WireCode(code), remaining_partitions=())
