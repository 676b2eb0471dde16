"""The generated pages say what the code says."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from logstore.config import LogConfig
from replication.config.broker import BrokerConfig
from replication.config.properties import properties_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = ["../conf/server.properties", "../replication/protocol/requests.py", "cli.md", "configuration.md"]


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(generate, name):
    assert sorted(generate.PAGES) == PAGES
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name](), "run `make docs`"


def test_every_setting_is_in_the_page(generate):
    page = generate.configuration()
    assert all(f"| `{setting.metadata['key']}` |" in page for setting in fields(LogConfig))


def test_every_command_has_help_and_an_example(generate):
    for words, page in generate.help_pages(generate.cli, ("pylog",)):
        assert "Usage:" in page
        assert re.search(rf"\$ .*{' '.join(words)}", page), f"{' '.join(words)} --help shows no example"


def test_server_properties_say_the_defaults_and_no_others():
    text = (ROOT / "conf" / "server.properties").read_text()
    written = properties_of(text)
    assert BrokerConfig.from_properties(written) == BrokerConfig()
    assert written.keys() == {setting.metadata["key"] for setting in fields(BrokerConfig)}


def test_help_pages_fit_a_terminal_of_80_columns():
    pages = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.DOTALL)
    assert len(pages) > 50
    assert [line for page in pages for line in page.splitlines() if len(line) > 80] == []
