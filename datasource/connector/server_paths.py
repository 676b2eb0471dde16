"""Relative paths: the server of a Spark Connect session would look below a temporary directory of its own.

Spark tells its Python processes which artifacts a job has: those of a classic session are "default", and such a process
works where Spark was started, so that its relative paths mean something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from datasource.connector.option_parsing import bad

ARTIFACTS, DIRECTORY = "SPARK_JOB_ARTIFACT_UUID", "PWD"
_PATHS = {
    name.lower(): name
    for name in (
        "path",
        "tieredTable",
        *(f"kafka.ssl.{store}.location" for store in ("ca", "certificate", "key", "keystore", "truststore")),
    )
}


def check_paths(options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for a relative path, if this process of Spark works for a session of a server."""
    if environment.get(ARTIFACTS, "default") != "default":
        refuse_relative(options, environment.get(DIRECTORY, "/the/directory"), "the server was started")


def refuse_relative(options: Mapping[str, str], start: str, who: str) -> None:
    """Raise InvalidConfigError for a relative path; `start`: the directory where this happened."""
    for name, value in options.items():
        path = value.strip()
        if name.lower() in _PATHS and path and not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:/", path):
            raise bad(
                _PATHS[name.lower()],
                path,
                "must be absolute over Spark Connect, whose server works elsewhere than you: write "
                f"'{start}/{path.removeprefix('./')}' for the directory where {who}",
            )
