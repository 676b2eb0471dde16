"""Registration: the node by which a broker shows that it is alive, and its broker epoch.

- A registration belongs to one session. A later life registers only after the former registration is gone.
- A broker epoch is greater than all before, and cannot be guessed: it must be read in the tree.
  So a request that names it comes from a controller, or from the broker itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from logstore.env import SYSTEM, Env
from replication.coordination import features, nodes
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
# The parts of a broker's epoch that make it grow and that make it a secret. Trying 2**40 guesses takes years: each is a
# refused request, and every tenth needs a new connection.
REGISTRATIONS_MAX, SECRET_BITS = 1 << 23, 40


class BrokerIdTakenError(CoordinationError):
    broker: BrokerId

    def __init__(self, broker: BrokerId, waited_ms: int) -> None:
        super().__init__(
            f"a broker with id {broker} is registered, and still was after {waited_ms} ms: give each broker its own id",
            broker=broker,
        )


def new_epoch(registrations: int, env: Env) -> int:
    """Return an epoch greater than those of the `registrations` before, which nobody can guess.

    | 23 bits: registrations | 40 bits: random | A positive int64. A broker that registers every minute reaches the last
    one after 16 years; it continues once its node in /pylog/incarnations is removed while it is down.
    """
    if registrations >= REGISTRATIONS_MAX:
        raise CoordinationError(f"a broker registered {registrations:,} times: delete its node in {nodes.INCARNATIONS}")
    return registrations << SECRET_BITS | env.random.getrandbits(SECRET_BITS)


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
    """Register the broker for the life of this session; return its epoch.

    `former` is the token of the session of its former life, which is ended at once. Without it, wait up to `wait_ms`
    for another registration to go: that takes a session timeout after the end of that life. `offline` are the
    replicas that the broker cannot serve: written in the same step.

    Raises: BrokerIdTakenError; UnsupportedLevelError: the cluster is at a level that the broker does not support.
    """
    if former is not None:
        await tree.end_session(former)
    while (epoch := await _register(tree, broker, offline, now_ms, env)) is None:
        await until_free(tree, broker.id, wait_ms=wait_ms)
    return epoch


async def until_free(tree: Tree, broker: BrokerId, *, wait_ms: int) -> None:
    """Return once no other session has this broker id registered. Raises: BrokerIdTakenError: after `wait_ms`."""
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


async def _register(tree: Tree, broker: BrokerInfo, offline: Offline | None, now_ms: int, env: Env) -> int | None:
    """Return the epoch of the new life, or that of this session's registration; None while another session has one."""
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
            *await features.registration_steps(tree, broker.id, broker.levels),
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
    if await tree.get(path, lambda path: changed.set()) is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), LOOK_AGAIN_S)


async def forget_losses(tree: Tree, broker: BrokerId) -> bool:
    """Clear `lost_writes` in this session's registration; False if there is none."""
    path = nodes.broker_path(broker)
    found = await tree.get(path)
    if found is None or found.owner != tree.session:
        return False
    info = replace(nodes.decode_broker(broker, found), lost_writes=False)
    await tree.set(path, nodes.encode_broker(info, nodes.registered_ms(found.data), found.data), found.version)
    return True
