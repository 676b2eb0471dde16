"""Which writers of transactions may still come back to commit: as far as can be told from this machine."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from logstore.env import Env
from logstore.store.transactions import processes
from logstore.store.transactions.state import State, TransactionAttempt

# How long a batch waits, without a task that runs, for a driver that is seen to live. It may have given up and could
# not tell: one that is sure to tell only since the disk was broken, or the machine too busy to start what tells.
UNREPORTED_MS = 15 * 60 * 1000
UNREPORTED_THOUGH_SURE_MS = 24 * 60 * 60 * 1000


class Liveness:
    """Who of the writers is alive, as far as can be told from here."""

    def __init__(self, env: Env, root: Path, holders: processes.Holders, state: State) -> None:
        self._env = env
        self._holders = holders
        self._host = processes.host(env)
        self._boot = self._host.partition("/")[0]
        self._is_shared = env.files.network_file_system(root) is not None
        self._idle_ms: dict[tuple[str, int, str], int] = {}
        for a in state.attempts.values():
            batch = a.name, a.batch_id, a.run
            is_writing = (
                not a.prepared and state.is_open(a.producer) and self._holders.is_held(a.owner.holder)
            )
            idle_ms = 0 if is_writing else self._since_ms(a)
            self._idle_ms[batch] = min(idle_ms, self._idle_ms.get(batch, idle_ms))

    def _since_ms(self, attempt: TransactionAttempt) -> int:
        """The time since it was heard of: by this machine's uptime if it runs here, since wall time may jump."""
        if attempt.up_ms >= 0 and attempt.owner.host.partition("/")[0] == self._boot:
            return self._env.clock.monotonic_ms() - attempt.up_ms
        return self._env.clock.now_ms() - attempt.seen_ms

    @cached_property
    def _at_work(self) -> set[str]:
        return self._holders.announced()

    def end_of(self, attempt: TransactionAttempt) -> str:
        """Why this attempt can never be committed; "" as long as it may be."""
        owner, boot = attempt.owner, attempt.owner.host.partition("/")[0]
        if boot != self._boot and not self._is_shared:
            return "the machine was started anew since"
        if boot == self._boot and not attempt.prepared:
            return "" if self._holders.is_held(owner.holder) else "the process that wrote it is gone"
        driver_lives = processes.lives(self._env, owner.driver)
        if attempt.prepared and driver_lives is False:
            return "the driver of the query is gone"
        return self._silence(attempt, is_seen=bool(driver_lives))

    def _silence(self, attempt: TransactionAttempt, *, is_seen: bool) -> str:
        limit_ms = timeout_ms = attempt.owner.timeout_ms
        if is_seen:
            unreported_ms = UNREPORTED_THOUGH_SURE_MS if attempt.owner.driver_tells else UNREPORTED_MS
            limit_ms = max(timeout_ms, unreported_ms)
        idle_ms = self._idle_ms[attempt.name, attempt.batch_id, attempt.run]
        if idle_ms <= limit_ms or task_of(attempt.name, attempt.batch_id, attempt.run) in self._at_work:
            return ""
        limit = "though its driver lives" if is_seen else f"transaction.timeout.ms={timeout_ms}"
        return f"nothing was heard of it for {idle_ms:,} ms ({limit})"


def task_of(name: str, batch_id: int, run: str) -> str:
    """What a process says while it runs a task of this batch."""
    return json.dumps([name, batch_id, run])
