"""The metrics that conf/ names, in its dashboard and its alert rules."""

import json
import re
from pathlib import Path

CONF = Path(__file__).parents[2] / "conf"


def expressions():
    panels = json.loads((CONF / "grafana-dashboard.json").read_text())["panels"]
    rules = re.findall(r"^        expr: (.+)$", (CONF / "prometheus-alerts.yml").read_text(), re.MULTILINE)
    return [target["expr"] for panel in panels for target in panel["targets"]] + rules


def names():
    return {name for text in expressions() for name in re.findall(r"\b(?:kafka|pylog|process)_\w+", text)}
