"""Scenarios as commands and what came of them. Several replay what a real Kafka 0.9.0.1 was recorded to do.

A transcript is a text file: `> command`, below it what was printed. After a change that is meant, run with
REWRITE_TRANSCRIPTS=1 and review the difference.
"""

import os
from pathlib import Path

import pytest

from tests.transcripts.cluster import Cluster
from tests.transcripts.coordinator import Coordinator

INTERPRETERS = {"controller": Cluster, "groups": Coordinator}
TRANSCRIPTS = sorted(path for name in INTERPRETERS for path in (Path(__file__).parent / name).glob("*.txt"))


def replay(text: str, interpreter) -> str:
    """The transcript with what the commands in it print now."""
    lines = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *("  " + printed for printed in interpreter.run(line[2:]))]
        elif not line.startswith("  "):
            lines.append(line)  # a comment, or an empty line
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda p: p.stem)
def test_the_machine_does_what_the_transcript_says(path):
    text = path.read_text()
    now = replay(text, INTERPRETERS[path.parent.name]())
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(now)
    assert now == text


def test_there_is_a_transcript_for_every_recorded_scenario():
    recorded = {"01", "02", "02b", "03", "04", "05", "07", "08", "09", "11"}
    assert {path.stem.split("-")[0] for path in TRANSCRIPTS} >= recorded
