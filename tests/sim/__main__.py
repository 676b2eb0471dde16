"""Run seeds: `python -m tests.sim FIRST [COUNT] [MUTANT]`; says what happened, and which seeds broke a law."""

import sys
import time
import traceback

from logstore.errors import PylogError
from tests.sim.simulation import Mutant, simulate


def main() -> int:
    first = int(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    mutant = Mutant[sys.argv[3]] if len(sys.argv) > 3 else None
    broken, begun = [], time.monotonic()
    for seed in range(first, first + count):
        try:
            summary = simulate(seed, mutant)
            if count == 1:
                print(summary)
        except (AssertionError, PylogError) as error:
            broken.append(seed)
            print(f"{type(error).__name__}: {error}"[:600])
            if count == 1:
                traceback.print_exc()
    seconds = time.monotonic() - begun
    print(f"{count} seeds in {seconds:.1f} s ({seconds / count * 1000:.0f} ms each), broken: {broken}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
