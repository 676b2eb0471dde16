"""UpdateFeatures: the level of the cluster is raised. Any broker does it, as the store decides who comes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from logstore.errors import PylogError
from replication.broker.feature_level import FeatureLevel
from replication.coordination import features
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.cluster import BrokerId
from replication.model.features import COMES_WITH, PYLOG_VERSION, Finalized, Levels, Update, refusal_to_update
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.features import SCHEMAS, TRANSACTION_VERSION
from replication.protocol.requests import FeatureUpdateKey, UpdateFeaturesRequest

_UPGRADE, _DOWNGRADES = 1, (2, 3)  # kinds of an update, since version 1; all of version 0 are upgrades
_SAYS_EACH = 1  # the last version whose answer has a row for each feature


class FeatureHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, known: FeatureLevel, tree: Callable[[], Tree]) -> None:
        self._known = known
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.UPDATE_FEATURES: self.update}

    async def update(self, context: Work, body: UpdateFeaturesRequest) -> Response:
        """Raise the level, or (`validate_only`) say whether it may be raised; all updates or none, as Kafka 4.4."""
        context.park()
        updates = [Update(row.feature, row.max_version_level, _is_upgrade(row)) for row in body.feature_updates]
        try:
            await self._update(updates, is_dry=body.validate_only)
        except PylogError as error:
            return {"error_code": code_of(error), "error_message": message_of(error), "results": ()}
        rows = [{"feature": each.feature, "error_code": ErrorCode.NONE, "error_message": "NONE"} for each in updates]
        answer = {"error_code": ErrorCode.NONE, "error_message": None}
        return answer | {"results": rows} if context.version <= _SAYS_EACH else answer

    async def _update(self, updates: Sequence[Update], *, is_dry: bool) -> None:
        """Raises: KafkaError: INVALID_UPDATE_VERSION; CoordinationError."""
        tree = self._tree()
        check = partial(self._check, updates)
        registered, finalized = await features.read_registered(tree)
        check(finalized, {broker: info.levels for broker, info in registered.items()})
        levels = [each.level for each in updates if each.feature == PYLOG_VERSION]
        if levels and not is_dry:
            await features.raise_level(tree, levels[-1], check)
            await self._known.look(tree)  # so that this broker tells it from now on

    def _check(self, updates: Sequence[Update], finalized: Finalized, brokers: Mapping[BrokerId, Levels]) -> None:
        own = {
            PYLOG_VERSION: self._known.supported,
            TRANSACTION_VERSION.name: Levels(TRANSACTION_VERSION.first, TRANSACTION_VERSION.last),
            **{each.name: Levels(each.first, each.last) for each in self._known.kafkas()},
            SCHEMAS.name: Levels(SCHEMAS.first, SCHEMAS.last),
        }
        levels = {
            PYLOG_VERSION: finalized.level,
            TRANSACTION_VERSION.name: TRANSACTION_VERSION.level,
            **{name: int(finalized.level >= level) for name, level in COMES_WITH.items()},
        }
        for update in updates:
            reason = refusal_to_update(update, levels, own, brokers)
            first = COMES_WITH.get(update.feature)
            if reason is None and first is not None and update.level > levels[update.feature]:
                reason = (
                    f"{update.feature} {update.level} comes with {PYLOG_VERSION} {first}: raise that, with "
                    f"`pylog features upgrade --level {first}`"
                )
            if reason is None and update.feature == SCHEMAS.name and update.level:
                reason = f"{SCHEMAS.name} is not raised: each broker tells for itself that it checks schemas"
            if reason is not None:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"The update failed for all features since the following feature had an error: {reason}",
                )


def _is_upgrade(row: FeatureUpdateKey) -> bool | None:
    is_known = row.upgrade_type in (_UPGRADE, *_DOWNGRADES)
    return row.upgrade_type == _UPGRADE if is_known else None
