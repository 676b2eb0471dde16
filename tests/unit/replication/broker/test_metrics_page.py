"""The page of metrics stays small, whatever clients call their groups; how late the loop was is told."""

import asyncio
import re
import time

from logstore.env import SYSTEM
from replication.broker.families import LABEL_CHARS_MAX, gauge, text
from replication.broker.loop_watch import TICK_MS, LoopWatch


def labels(page):
    return re.findall(r'consumergroup="([^"]*)"', page)


def test_long_names_are_cut_and_stay_different():
    names = ["g" * 30_000, "g" * 30_000 + "1", "g" * 249, "short"]
    found = labels(text([gauge("kafka_consumergroup_members", *(({"consumergroup": name}, 1) for name in names))]))
    assert len(set(found)) == 4
    assert all(len(label) <= LABEL_CHARS_MAX for label in found)
    assert found[2:] == names[2:]


def test_the_lag_of_the_loop_is_how_late_it_was_lately():
    async def held(seconds):
        watch = LoopWatch(SYSTEM, str, lambda stalled_ms: None)
        watch.begin()
        await asyncio.sleep(2 * TICK_MS / 1000)
        before_ms = watch.lag_ms
        time.sleep(seconds)  # noqa: ASYNC251  it holds the loop
        watch.look()  # as before an acknowledgement: this is no tick
        await asyncio.sleep(2 * TICK_MS / 1000)
        watch.end()
        return before_ms, watch.lag_ms

    before_ms, lag_ms = asyncio.run(held(0.4))
    assert lag_ms >= 290
    assert before_ms < lag_ms
