"""Registration: a broker says on the tree that it is there, once per life, and what this life is called.

- A registration is the node of one session; a later life of the broker comes after the former one has ended, so that
  nobody mistakes one for the other.
- The epoch of a life is greater than those of the lives before it, and cannot be guessed: who names it has read it in
  the tree. So a request that names it was sent by a controller, or by the broker itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from logstore.env import SYSTEM, Env
from replication.coordination import nodes
from replication.coordination.tree import (
    BadVersionError,
    CoordinationError,
    Create,
    NodeExistsError,
    SetData,
    Step,
    Tree,
    ensure_path,
)
from replication.model.cluster import BrokerId, BrokerInfo, Offline

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
# Of a broker's epoch: what makes it grow, and what makes it a secret. 2**40 guesses, each of them a request that is
# refused and every tenth a new connection, keep a broker busy for years.
LIVES_MAX, SECRET_BITS = 1 << 23, 40


class BrokerIdTakenError(CoordinationError):
    """Another broker of this id is alive."""

    broker: BrokerId

    def __init__(self, broker: BrokerId, waited_ms: int) -> None:
        super().__init__(
            f"a broker with id {broker} is registered, and still was after {waited_ms} ms: give each broker its own id",
            broker=broker,
        )


def new_epoch(lives: int, env: Env) -> int:
    """The epoch of a broker that has had so many lives before: greater than theirs, and not to be guessed.

    | 23 bits: lives | 40 bits: random | It is a positive int64. A broker that registers every minute reaches its last
    life after 16 years; it can go on once its node in /pylog/incarnations was removed while it was down.
    """
    if lives >= LIVES_MAX:
        raise CoordinationError(f"a broker has had {lives:,} lives: remove its node in {nodes.INCARNATIONS}")
    return lives << SECRET_BITS | env.random.getrandbits(SECRET_BITS)


async def register_broker(  # noqa: PLR0913  who registers, in which state, and how it waits
    tree: Tree,
    broker: BrokerInfo,
    *,
    now_ms: int,
    wait_ms: int,
    former: bytes | None = None,
    offline: Offline | None = None,
    env: Env = SYSTEM,
) -> int:
    """Register the broker for as long as this session lives; return its epoch.

    `former` is the token of the session of its former life, which is ended at once. Without it, a registration that
    is there is waited for, up to `wait_ms`: it is gone a session timeout after that life ended. `offline` are the
    replicas that it cannot serve: said in the same step.

    Raises: BrokerIdTakenError: it did not go.
    """
    if former is not None:
        await tree.end_session(former)
    while (epoch := await _register(tree, broker, offline, now_ms, env)) is None:
        await until_free(tree, broker.id, wait_ms=wait_ms)
    return epoch


async def until_free(tree: Tree, broker: BrokerId, *, wait_ms: int) -> None:
    """Return once no other session has a broker of this id registered.

    Raises: BrokerIdTakenError: one has, all that time.
    """
    path, is_waiting = nodes.broker_path(broker), False
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while (found := await tree.get(path)) is not None and found.owner != tree.session:
                if not is_waiting:
                    logger.warning(
                        "a broker with id %d is registered: waiting for that to end, up to %g s",
                        broker,
                        wait_ms / 1000,
                    )
                is_waiting = True
                await _changed(tree, path)
    except TimeoutError:
        raise BrokerIdTakenError(broker, wait_ms) from None


async def _register(
    tree: Tree, broker: BrokerInfo, offline: Offline | None, now_ms: int, env: Env
) -> int | None:
    """The epoch of its new life, or of that which this session has; None while the registration is another's."""
    path, incarnation = nodes.broker_path(broker.id), nodes.incarnation_path(broker.id)
    while True:
        await ensure_path(tree, incarnation)
        before, found = await tree.read_batch([incarnation, path])
        if found is not None:
            is_own = found.owner == tree.session  # made by a call whose answer was lost
            return nodes.decode_broker(broker.id, found).epoch if is_own else None
        if before is None:
            continue
        epoch = new_epoch(before.version + 1, env)
        registration = nodes.encode_broker(replace(broker, epoch=epoch), now_ms)
        steps: list[Step] = [
            Create(path, registration, ephemeral=True),
            SetData(incarnation, b"", before.version),
        ]
        if offline is not None:
            steps.append(Create(nodes.offline_path(broker.id), nodes.encode_offline(offline), ephemeral=True))
        try:
            await tree.multi(steps)
        except (NodeExistsError, BadVersionError):
            continue
        return epoch


async def _changed(tree: Tree, path: str) -> None:
    """Return when the node has changed or is gone, or after a moment: the watch may be lost with the connection."""
    changed = asyncio.Event()
    if await tree.get(path, lambda change: changed.set()) is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), LOOK_AGAIN_S)


async def forget_losses(tree: Tree, broker: BrokerId) -> bool:
    """Rewrite the registration of this session's broker as one that has lost nothing; False if it has none."""
    path = nodes.broker_path(broker)
    found = await tree.get(path)
    if found is None or found.owner != tree.session:
        return False
    info = replace(nodes.decode_broker(broker, found), lost_writes=False)
    await tree.set(path, nodes.encode_broker(info, nodes.registered_ms(found.data)), found.version)
    return True
