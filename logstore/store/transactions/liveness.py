"""Which writers of transactions may still come back to commit, as far as this machine can tell."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from logstore.env import Env, network_file_system
from logstore.store.transactions import processes
from logstore.store.transactions.state import State, TransactionAttempt


class Liveness:
    def __init__(self, env: Env, root: Path, holders: processes.Holders, state: State) -> None:
        self._env = env
        self._holders = holders
        self._host = processes.host(env)
        self._boot = self._host.partition("/")[0]
        self._is_shared = network_file_system(env.files, root) is not None
        self._idle_ms: dict[tuple[str, int, str], int] = {}
        for a in state.attempts.values():
            batch = a.name, a.batch_id, a.run
            is_writing = not a.prepared and state.is_open(a.producer) and self._holders.is_held(a.owner.holder)
            idle_ms = 0 if is_writing else self._since_ms(a)
            self._idle_ms[batch] = min(idle_ms, self._idle_ms.get(batch, idle_ms))

    def _since_ms(self, attempt: TransactionAttempt) -> int:
        """Time since its last sign: by this machine's uptime if it runs here, since wall time may jump."""
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
        if attempt.prepared and processes.is_alive(self._env, owner.driver) is False:
            return "the driver of the query is gone"
        idle_ms, limit_ms = self._idle_ms[attempt.name, attempt.batch_id, attempt.run], owner.timeout_ms
        if idle_ms <= limit_ms or task_of(attempt.name, attempt.batch_id, attempt.run) in self._at_work:
            return ""
        return f"no process has worked on it for {idle_ms:,} ms (transaction.timeout.ms={limit_ms})"


def task_of(name: str, batch_id: int, run: str) -> str:
    """The announcement of a process that runs a task of this batch."""
    return json.dumps([name, batch_id, run])
