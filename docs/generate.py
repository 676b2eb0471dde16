"""Write what comes from the code: docs/configuration.md, docs/cli.md, conf/server.properties and types of requests.

Run `python docs/generate.py` (or `make docs`) after a change of a setting or a command; `--check` only says
whether the pages are current, and tests/architecture does the same.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # a checkout will do, installed or not

import request_types  # noqa: E402

from logstore.cli import cli  # noqa: E402
from logstore.config import INT64_MAX, LogConfig, format_value  # noqa: E402
from replication.config.broker import BrokerConfig  # noqa: E402
from replication.config.group import SETTINGS_OF_GROUPS, bounds_of  # noqa: E402
from replication.config.live import LIVE  # noqa: E402


def configuration() -> str:
    """docs/configuration.md: every setting of topics, groups and brokers, from the fields of their classes."""
    rows = [
        f"| `{f.metadata['key']}` | {_default(f.default)} | {_allowed(f)} | {f.metadata['help']} |"
        for f in fields(LogConfig)
    ]
    return "\n".join(
        [
            "# Topic settings",
            "",
            "<!-- Written by docs/generate.py from the code: change logstore/config.py and run `make docs`. -->",
            "",
            "Topic settings have Kafka's names and limits. Set them with `pylog topics create --config KEY=VALUE`,",
            "change them with `pylog topics alter --config KEY=VALUE`, go back to the default with",
            "`--delete-config`. In Python, `create_topic` and `alter_topic` take the settings as `config`. An",
            "unknown key or a value out of range is refused.",
            "",
            "| key | default | allowed | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
            "# Group settings",
            "",
            "Groups have settings of their own, by Kafka's names, from",
            "[feature level](cluster-operations.md#upgrade-without-a-stop) 3 on. Set them with",
            "`pylog configs alter --entity-type groups --entity-name GROUP`; all brokers know them within moments.",
            "A number must be within the bounds that brokers give, `group.share.min.session.timeout.ms` and",
            "`group.share.max.session.timeout.ms` for example; the default is that of the broker,",
            "`group.share.session.timeout.ms`.",
            "",
            "| key | default | allowed | what it does |",
            "|---|---|---|---|",
            *(
                f"| `{key}` | {_default(f.default)} | {_allowed_of_group(f)} | {f.metadata['help']} |"
                for key, f in SETTINGS_OF_GROUPS.items()
            ),
            "",
            "# Broker settings",
            "",
            "Broker settings are the keys of `server.properties`; `conf/server.properties` says what each does.",
            "`pylog configs alter --entity-type brokers`, or any client, changes live settings while brokers run,",
            "with `--entity-name ID` for one broker or `--entity-default` for all. A broker's own value counts",
            "first, then the value for all brokers, then its file. A change of any other setting is refused there,",
            "and takes a restart.",
            "",
            "| key | default | live |",
            "|---|---|---|",
            *(
                f"| `{f.metadata['key']}` | {_default(f.default)} | {'yes' if f.metadata['key'] in LIVE else 'no'} |"
                for f in fields(BrokerConfig)
            ),
            "",
        ]
    )


def _allowed_of_group(setting: Any) -> str:
    if setting.metadata["key"] == "share.auto.offset.reset":
        return "earliest, latest, by_duration:P…"
    if setting.metadata["key"] == "errors.deadletterqueue.topic.name":
        return "a topic"
    bounds = bounds_of(setting)
    return _allowed(setting) if bounds is None else f"{bounds[0].default} to {bounds[1].default}"


def _default(value: object) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case _ if value in ("", frozenset()):
            return "empty"
        case frozenset():
            return f"`{','.join(sorted(value))}`"
        case _ if value == INT64_MAX:
            return f"`{value}` (no limit)"
        case _:
            return f"`{value}`"


def _allowed(setting: Any) -> str:
    rule = setting.metadata
    if "choices" in rule:
        return ", ".join(f"`{choice}`" for choice in rule["choices"] if choice)
    if "members" in rule:
        return " and/or ".join(f"`{member}`" for member in sorted(rule["members"]))
    if "form" in rule:
        return rule["form"]
    if isinstance(setting.default, bool):
        return "`true`, `false`"
    if "maximum" in rule:
        return f"{rule['minimum']} … {rule['maximum']}"
    return f"≥ {rule['minimum']}"


def server_properties() -> str:
    """conf/server.properties: every setting of a broker with its default, from the fields of BrokerConfig."""
    lines = [
        "# Settings of a broker, by Kafka's names. Every line shows its default, and may be left out.",
        "# Written by docs/generate.py from replication/config/broker.py.",
        "#",
        "# pylog broker start --config conf/server.properties",
    ]
    for f in fields(BrokerConfig):
        allowed = [] if isinstance(f.default, str) and "choices" not in f.metadata else [_allowed(f)]
        lines += ["", *textwrap.wrap(" ".join([f.metadata["help"], *allowed]).replace("`", ""), 100,
                                     initial_indent="# ", subsequent_indent="# ")]  # fmt: skip
        lines += [f"{f.metadata['key']}={format_value(f.default)}"]
    return "\n".join([*lines, ""])


def command_line() -> str:
    """docs/cli.md: the help page of every command, as the terminal shows it."""
    parts = [
        "# Command line",
        "",
        "<!-- Written by docs/generate.py from the commands' own help: change that and run `make docs`. -->",
        "",
        "Data goes to stdout, messages to stderr. Exit codes: 0 success, 1 failure (or damage was found),",
        "2 wrong usage, 130 Ctrl-C and 143 SIGTERM where these are not the normal end.",
        "`--path` can also come from the environment variable `PYLOG_PATH`,",
        "`--bootstrap-server` from `PYLOG_BOOTSTRAP`.",
        "",
        'Completion in bash: `eval "$(_PYLOG_COMPLETE=bash_source pylog)"` in `~/.bashrc`;',
        "`zsh_source` is that of zsh; in fish:",
        "`_PYLOG_COMPLETE=fish_source pylog > ~/.config/fish/completions/pylog.fish`.",
        "",
    ]
    for words, page in help_pages(cli, ("pylog",)):
        parts += [f"## {' '.join(words)}", "", "```text", page, "```", ""]
    return "\n".join(parts)


def help_pages(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(words, help text) of a command and of everything below it."""
    settings = {**cli.context_settings, "terminal_width": 80}
    command._help_option = None  # click keeps the one that was made first, perhaps under other settings
    context = click.Context(command, info_name=" ".join(words), **settings)
    yield words, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from help_pages(child, (*words, name))


PAGES = {
    "configuration.md": configuration,
    "cli.md": command_line,
    "../conf/server.properties": server_properties,
    "../replication/protocol/requests.py": request_types.requests,
}


def stale() -> list[str]:
    """The generated pages that do not match the code."""
    return [name for name, page in PAGES.items() if not _is_current(HERE / name, page())]


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say which are stale; return the exit code."""
    if "--check" in arguments:
        for name in stale():
            print(f"docs/{name} is not current: run `make docs`", file=sys.stderr)  # noqa: T201
        return 1 if stale() else 0
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
