"""conf/Containerfile and the unit of systemd: what they copy is enough, and what they run works."""

import json
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.cluster.test_commands import pylog
from tests.support.commands import run_pylog
from tests.support.dashboards import CONF
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow

ROOT = CONF.parent
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}


def instructions():
    """(instruction, its arguments), in the order of the file."""
    lines = (CONF / "Containerfile").read_text().splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def argument(wanted):
    (found,) = [text for name, text in instructions() if name == wanted]
    return found


def command(wanted):
    """The words of the command that an instruction runs without a shell."""
    words = json.loads(argument(wanted).partition("[")[1] + argument(wanted).partition("[")[2])
    assert words[0] == "pylog"
    return words[1:]


def test_the_instructions_are_known_and_the_user_is_not_root():
    names = [name for name, _ in instructions()]
    assert set(names) <= KNOWN
    assert (names[0], names[-1]) == ("FROM", "ENTRYPOINT")
    made = next(text for name, text in instructions() if name == "RUN" and text.startswith("useradd"))
    assert argument("USER") in made.split()
    assert f"--owner={argument('USER')}" in made
    assert names.index("USER") > max(n for n, name in enumerate(names) if name in ("RUN", "COPY"))
    assert hasattr(signal, argument("STOPSIGNAL"))
    assert f"log.dirs={argument('VOLUME')}/log" in command("ENTRYPOINT")


@only_long("a build")
def test_what_is_copied_is_enough_to_install_all_packages(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    for name, text in instructions():
        if name != "COPY":
            continue
        *sources, target = text.split()
        for each in sources:
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / each, source / target)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    ran = subprocess.run([*words, str(source)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        packed = {name for name in made.namelist() if name.endswith(".py")}
    text = (ROOT / "pyproject.toml").read_text()
    packages = json.loads(re.search(r"targets\.wheel\]\npackages = (\[.+\])", text)[1])
    assert packed == {str(path.relative_to(ROOT)) for each in packages for path in (ROOT / each).rglob("*.py")}


def test_the_command_of_the_image_starts_a_broker_that_its_health_check_finds(tmp_path):
    own = ["log.dirs=" + str(tmp_path / "log"), "listeners=PLAINTEXT://127.0.0.1:0", "advertised.listeners="]
    check = command("HEALTHCHECK")
    with pylog(*command("ENTRYPOINT"), *(word for each in own for word in ("--set", each))) as (process, line):
        check[-1] = line.partition("=")[2]
        assert run_pylog(*check).code == 0
        process.send_signal(getattr(signal, argument("STOPSIGNAL")))
        assert process.wait(60) == 0
    impatient = tmp_path / "client.properties"
    impatient.write_text("default.api.timeout.ms=1000\n")
    assert run_pylog(*check, "--command-config", impatient).code == 1


def test_the_unit_of_systemd_runs_a_command_that_there_is(tmp_path):
    unit = (CONF / "pylog-broker.service").read_text()
    words = re.search(r"^ExecStart=/usr/bin/env pylog (.+)$", unit, re.MULTILINE)[1].split()
    config = Path(words[-1])
    assert words[:-1] == ["broker", "start", "--config"]
    assert str(config) in unit.splitlines()[0]
    (tmp_path / config.name).write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/log\n")
    with pylog(*words[:-1], tmp_path / config.name) as (process, line):
        assert line.startswith("bootstrap=127.0.0.1:")
        process.send_signal(getattr(signal, re.search(r"^KillSignal=(\w+)$", unit, re.MULTILINE)[1]))
        assert process.wait(60) == 0
