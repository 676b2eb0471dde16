"""CHANGELOG.md has releases that a person reads in a minute, and the code says which of them it is."""

import re
from pathlib import Path

from click.testing import CliRunner
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import logstore
from logstore.cli import cli

ROOT = Path(__file__).parents[2]
WORDS_MAX = 350  # of one release

TEXT = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", TEXT, re.MULTILINE)
SECTIONS = dict(re.findall(r"^## (\S+).*\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE))


def test_releases_are_in_order_newest_first():
    versions = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    assert versions == sorted(set(versions), reverse=True)
    assert [day for _, day in RELEASES] == sorted((day for _, day in RELEASES), reverse=True)
    assert list(SECTIONS) == ["Unreleased", *(version for version, _ in RELEASES)]


def test_a_release_is_read_in_a_minute_and_says_nothing_twice():
    for version, _ in RELEASES:
        assert len(SECTIONS[version].split()) <= WORDS_MAX, version
    lines = re.findall(r"^- (.+)$", TEXT, re.MULTILINE)
    assert len(lines) == len(set(lines))


def test_the_command_the_package_and_the_wheel_say_one_version():
    printed = CliRunner().invoke(cli, ["--version"]).output
    assert printed == f"pylog, version {logstore.__version__}\n"
    assert ProjectMetadata(str(ROOT), PluginManager()).version == logstore.__version__


def test_the_version_is_the_newest_release_or_in_development_after_it():
    newest = RELEASES[0][0]
    if SECTIONS["Unreleased"].strip():
        version = re.fullmatch(r"(\d+\.\d+\.\d+)\.dev0", logstore.__version__)[1]
        assert tuple(map(int, version.split("."))) > tuple(map(int, newest.split(".")))
    else:
        assert logstore.__version__ == newest
