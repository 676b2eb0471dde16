"""The circumstances of a run, from which its seed chooses: the usual ones, and for each rare bug those that provoke it.

All circumstances are legal: without the bug they break no law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.sim.mutants import Mutant

COPIES, MEMBERS = "copies", "members"  # kinds of clients beside producers and consumers
OFFSETS, END = "a commit of offsets", "an end of a transaction"  # moments of clients
FAULTS = (
    *["kill"] * 4,
    *["power"] * 4,
    "wipe",
    *["cut_in_the_middle"] * 3,
    *["pause"] * 2,
    *["pause_controller"] * 2,
    *["part"] * 3,
    *["part_from_tree"] * 2,
    *["isolate"] * 2,
    *["isolate_leader"] * 4,
    *["remove_controller_node"] * 2,
    *["shut_down"] * 2,
    *["reassign"] * 4,
    *["offline"] * 3,
    *["flip"] * 4,
)


class Circumstances(NamedTuple):
    """`at`: a moment, the fault that may happen then, and its probability. `clients`: for seed % 3."""

    clients: Sequence[str] = (MEMBERS, COPIES, "")
    client_pause: float = 0.4
    pace: float = 1  # of producers: a smaller one is faster
    partitions: Sequence[int] = (1, 1, 2)
    factors: Sequence[int] = (2, 3, 3)
    min_isr: Sequence[int] = (1, 2)
    unclean: float = 0.1
    drops: Sequence[float] = (0, 0.005, 0.02)
    spikes: Sequence[float] = (0, 0.02, 0.1)
    fails: Sequence[float] = (0, 0.01, 0.03)
    faults: Sequence[str] = FAULTS
    at: tuple[str, str, float] = ("", "", 0)
    gaps_ms: Sequence[int] = (20, 100, 300, 600)
    lasts_ms: Sequence[int] = (50, 200, 700, 1500)


USUAL = Circumstances()
QUIET = USUAL._replace(clients=("",) * 3, unclean=0, drops=(0,), spikes=(0,), fails=(0,), faults=())
TURNS = QUIET._replace(faults=("isolate_leader",), partitions=(2,), gaps_ms=(1200,), lasts_ms=(700,))  # of leaders
FLIPS = QUIET._replace(clients=("", "", COPIES), faults=(*["flip"] * 8, "kill", *["isolate_leader"] * 2, "power"))
COPIED = QUIET._replace(clients=(COPIES,) * 3)
# Other gaps would meet the rhythm in which brokers flush.
UNFLUSHED = QUIET._replace(partitions=(2,), gaps_ms=(1300, 1500, 1700))
CIRCUMSTANCES = {
    Mutant.TRUNCATE_TO_HW: TURNS,
    Mutant.COMMITTED_ISR_ONLY: TURNS._replace(faults=("isolate",), factors=(2,), min_isr=(1,), gaps_ms=(600,)),
    Mutant.CUT_IN_THE_DARK: TURNS._replace(fails=(0.03,)),
    Mutant.CUT_UNASKED: FLIPS,
    Mutant.NOT_FILLED: FLIPS,
    Mutant.NO_RECOVERY: UNFLUSHED._replace(faults=("power",), pace=0.5, factors=(3,), lasts_ms=(50, 200)),
    Mutant.WAITS_OUTLIVE_ROLES: TURNS,
    Mutant.POWER_CUT_UNNOTICED: UNFLUSHED._replace(faults=("power_without_leader",), factors=(2,), lasts_ms=(700,)),
    Mutant.ACKED_TWICE: QUIET._replace(
        drops=(0.02,), spikes=(0.02,), faults=("pause", "isolate_leader"), gaps_ms=(300,)
    ),
    Mutant.APPENDED_TWICE: QUIET._replace(drops=(0.05,)),
    Mutant.SESSION_FORGETS: QUIET,
    Mutant.NO_QUESTION: COPIED,
    Mutant.TOLD_BEFORE_STORED: COPIED._replace(at=(END, "isolate_coordinator", 0.3), lasts_ms=(1000,)),
    Mutant.FENCED_ENDS: COPIED._replace(client_pause=0.8),
    Mutant.ABORTED_OFFSETS: COPIED,
    Mutant.ANY_GENERATION: QUIET._replace(
        clients=(MEMBERS,) * 3,
        client_pause=0,
        pace=10,
        partitions=(2,),
        at=(OFFSETS, "cut_off_client", 0.5),
        lasts_ms=(1500,),
    ),
}
