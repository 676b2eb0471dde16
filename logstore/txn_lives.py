"""Which writers of transactions may still come back to commit: as far as can be told from this machine."""

from __future__ import annotations

from pathlib import Path

from logstore import processes
from logstore.env import Env
from logstore.txn_state import Attempt, State


class Lives:
    """Who of the writers is alive, as far as can be told from here."""

    def __init__(self, env: Env, root: Path, holders: processes.Holders, state: State) -> None:
        self._env = env
        self._holders = holders
        self._host = processes.host(env)
        self._boot = self._host.partition("/")[0]
        self._is_shared = env.files.network_file_system(root) is not None
        self._now_ms = env.clock.now_ms()
        self._moved_ms: dict[tuple[str, int, str], int] = {}
        for a in state.attempts.values():
            batch = a.name, a.batch_id, a.run
            is_writing = (
                not a.prepared and state.is_open(a.producer) and self._holders.is_held(a.owner.holder)
            )
            moved_ms = self._now_ms if is_writing else a.seen_ms
            self._moved_ms[batch] = max(moved_ms, self._moved_ms.get(batch, 0))

    def end_of(self, attempt: Attempt) -> str:
        """Why this attempt can never be committed; "" as long as it may be."""
        owner, boot = attempt.owner, attempt.owner.host.partition("/")[0]
        if boot != self._boot and not self._is_shared:
            return "the machine was started anew since"
        if boot == self._boot and not attempt.prepared and not self._holders.is_held(owner.holder):
            return "the process that wrote it is gone"
        if attempt.prepared and processes.is_gone(self._env, owner.driver):
            return "the driver of the query is gone"
        idle_ms = self._now_ms - self._moved_ms[attempt.name, attempt.batch_id, attempt.run]
        is_seen = boot == self._boot and not attempt.prepared
        if idle_ms > owner.timeout_ms and not is_seen:
            return f"nothing was heard of it for {idle_ms:,} ms (transaction.timeout.ms={owner.timeout_ms})"
        return ""
