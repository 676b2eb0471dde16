"""Files of settings, and the other spellings that some settings have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logstore.errors import InvalidConfigError

HOUR_MS = 3_600_000
MINUTE_MS = 60_000

# Other spellings of a setting: key -> (the setting, its factor). Where several are given, the finest unit wins.
_ALIASES = {
    "log.dir": ("log.dirs", None),
    "log.retention.minutes": ("log.retention.ms", MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
    "zookeeper.connect": ("coordination", None),
}


def properties_of(text: str, where: str = "server.properties") -> dict[str, str]:
    """Parse a file of properties: `key=value` lines; `#` begins a comment, and a line goes on behind a backslash.

    At the end of a line two backslashes are one of its value, as in Java.

    Raises: InvalidConfigError: a line that is neither, which is not shown, or a key that is given twice.
    """
    found: dict[str, str] = {}
    begun = ""  # of a line that goes on in the next one
    for number, row in enumerate(text.splitlines(), 1):
        line = begun + row.strip()
        if not begun and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        line = line[: len(line) - slashes] + "\\" * (slashes // 2)
        begun = line if slashes % 2 else ""
        if begun:
            continue
        key, mark, value = (part.strip() for part in line.partition("="))
        if not mark or not key or key in found:
            reason = f"{key} is given twice" if mark and key in found else "it is not key=value"
            raise InvalidConfigError(f"{where}, line {number}: {reason}", key=key if mark else None)
        found[key] = value
    if begun:
        raise InvalidConfigError(f"{where}: the last line ends with a backslash, and nothing follows")
    return found


def without_aliases(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Replace other spellings by the keys of the fields; of several, the finest unit wins."""
    found = {key: value for key, value in properties.items() if key not in _ALIASES}
    for alias, (key, factor) in _ALIASES.items():
        if alias in properties and key not in found:
            found[key] = _converted(alias, str(properties[alias]).strip(), factor)
    return found


def _converted(alias: str, text: str, factor: int | None) -> str:
    if alias == "zookeeper.connect":
        return f"zookeeper:{text}"
    if factor is None:
        return text
    if not text.removeprefix("-").isdecimal():
        raise InvalidConfigError(f"{alias}={text!r}: this setting takes a whole number", key=alias)
    return str(int(text) * factor if int(text) >= 0 else -1)
