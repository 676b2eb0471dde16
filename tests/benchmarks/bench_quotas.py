"""The cost of quotas per small request: CPU time of the flag that is looked at without any, and of a charge with some.

python tests/benchmarks/bench_quotas.py
"""

from __future__ import annotations

import timeit

from replication.network.throttle import Throttle
from replication.security.access import Context, Principal
from replication.security.quotas import ANY, Entity, Quota

CALLS, ROUNDS = 20_000, 20
HERE = Context("127.0.0.1", 1, Principal("ada"))


def main() -> None:
    idle, used = Throttle(), Throttle()
    for number in range(1000):
        used.put(Entity(f"user-{number}", ANY), {Quota.PRODUCED: 1e9})
    used.put(Entity(None, ANY), {Quota.PRODUCED: 1e9})

    def flag() -> None:
        if idle.is_on:
            raise AssertionError

    def charge() -> None:
        used.charge(Quota.PRODUCED, used.limit_of(Quota.PRODUCED, HERE, "client"), 100)

    def nothing() -> None:
        pass

    base = min(timeit.repeat(nothing, number=CALLS, repeat=ROUNDS))
    for name, act in (("no quotas", flag), ("a charge, among 1,000 quotas", charge)):
        spent = min(timeit.repeat(act, number=CALLS, repeat=ROUNDS)) - base
        print(f"{name}: {spent / CALLS * 1e6:.3f} us")


if __name__ == "__main__":
    main()
