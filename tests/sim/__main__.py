"""Run seeds: `python -m tests.sim FIRST [COUNT] [MUTANT]`; says what happened, and which seeds broke a law."""

import sys
import time
import traceback

from tests.sim.mutants import Mutant
from tests.sim.simulation import UnforeseenError, simulate

TOLD_EVERY = 100  # seeds


def main() -> int:
    first = int(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    mutant = Mutant[sys.argv[3]] if len(sys.argv) > 3 else None
    broken, begun = [], time.monotonic()
    for number, seed in enumerate(range(first, first + count), 1):
        try:
            summary = simulate(seed, mutant)
            if count == 1:
                print(summary)
        except (AssertionError, UnforeseenError) as error:
            broken.append(seed)
            print(f"{type(error).__name__}: {error}"[:600], flush=True)
            if count == 1:
                traceback.print_exc()
        if number % TOLD_EVERY == 0 or number == count:
            seconds = time.monotonic() - begun
            told = f"{number} seeds in {seconds:.1f} s ({seconds / number * 1000:.0f} ms each), broken: {broken}"
            print(told, flush=True)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
