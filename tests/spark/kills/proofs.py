"""Proofs by command: the kills of one kind, or of each, with a seed that can be given again."""

import argparse
import random
import tempfile
from pathlib import Path


def run(about, option, kinds, prove):
    """Print what `prove(directory, kind, kills=…, seed=…)` says of each kind that `--OPTION` names, or of all."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument(f"--{option}", dest="kinds", choices=kinds, action="append")
    asked = parser.parse_args()
    for kind in asked.kinds or kinds:
        with tempfile.TemporaryDirectory(prefix=f"pylog-{option}-") as root:
            print(prove(Path(root), kind, kills=asked.kills, seed=asked.seed), flush=True)
