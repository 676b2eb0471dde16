"""SchemaIds: the ids of `_schemas`, as a broker knows them that judges the records of others by them.

Law: an id counts as unknown only by a look at the committed end of `_schemas` that began after its record came. So a
schema can be used as soon as it is registered. Looks are shared: one is under way at a time, of a whole broker, and
those who came meanwhile wait for the next. Known ids need no look; for the sake of deleted ones, one follows at most
every FRESH_MS while records come. `demands` and `looks` may be called from any thread, the rest belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from logstore.config import LogConfig, Part
from logstore.env import Clock
from logstore.errors import PylogError
from logstore.schemas.strategies import Demand, demand_of, nothing_known
from logstore.schemas.subjects import TOPIC, Subjects
from replication.replica.machine.looks import Looks

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # for one look: meanwhile the records of a partition wait
RETRY_S = 0.05
FRESH_MS = 1000


class SchemaIds:
    """`read_on` returns the state at the end of `_schemas`, and whether it is another one than before.

    It may raise OSError, TimeoutError, PylogError; then it is called again.
    """

    def __init__(self, clock: Clock, read_on: Callable[[], Awaitable[tuple[Subjects, bool]]]) -> None:
        self.looks = Looks()
        self._clock = clock
        self._read_on = read_on
        self._demands: dict[tuple[str, Part, str], Demand] = {}
        self._wanted: dict[tuple[str, Part, str], None] = {}
        self._waiting: list[Callable[[], None]] = []
        self._looked_ms: int | None = None  # when the last look was over
        self._task: asyncio.Task[None] | None = None

    def demands(self, topic: str, config: LogConfig) -> tuple[Demand, ...]:
        """Return what the keys and values of a topic must bear, as of the last look. Ask for `looks` before."""
        found = []
        for part, strategy in config.validated_parts:
            key = topic, part, strategy
            if key not in self._demands:
                self._wanted[key] = None
            found.append(self._demands.get(key) or nothing_known(topic, part))
        return tuple(found)

    def fresh_demands(self, topic: str, config: LogConfig) -> tuple[Demand, ...]:
        """Return the demands as they are known, and have a look soon if the last one is long ago."""
        if self._looked_ms is not None and self._clock.monotonic_ms() - self._looked_ms > FRESH_MS:
            self._begin()
        return self.demands(topic, config)

    def look(self, then: Callable[[], None]) -> None:
        """Call `then` when a look is over that begins after this call."""
        self._waiting.append(then)
        self._begin()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting and not task.cancelled():
            self._begin()

    async def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        number = self.looks.begun + 1
        self.looks = self.looks._replace(begun=number)
        try:
            has_seen = await self._look_until_seen()
            self.looks = self.looks._replace(over=number, seen=number if has_seen else self.looks.seen)
        finally:
            self._looked_ms = self._clock.monotonic_ms()
            for then in waiting:
                then()

    async def _look_until_seen(self) -> bool:
        why: BaseException | None = None
        try:
            async with asyncio.timeout(LOOK_S):
                while True:
                    try:
                        state, is_new = await self._read_on()
                    except (OSError, PylogError) as error:
                        why = error
                        await asyncio.sleep(RETRY_S)
                    else:
                        break
        except TimeoutError:
            logger.warning("topic=%s cannot be read, so new schema ids are not known: %s", TOPIC, why or "no answer")
            return False
        wanted = dict(self._wanted)
        if is_new or wanted.keys() - self._demands.keys():
            self._demands = await asyncio.to_thread(_demands, state, wanted)
        return True


def _demands(state: Subjects, wanted: dict[tuple[str, Part, str], None]) -> dict[tuple[str, Part, str], Demand]:
    return {(topic, part, strategy): demand_of(state, topic, part, strategy) for topic, part, strategy in wanted}
