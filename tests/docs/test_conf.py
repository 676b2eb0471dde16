"""The files of conf/ for other programs: these can read them. test_metrics of the cluster has the metrics that they
name.
"""

import re
import shutil
import subprocess

import pytest

from tests.support.dashboards import CONF, expressions

RULE = re.compile(
    r"      - alert: [A-Z]\w+\n        expr: .+\n        for: \d+m\n"
    r"        labels: \{severity: (?:warning|critical)\}\n        annotations: \{summary: '[^'\n]+'\}\n"
)


def test_alert_rules_are_rules_and_nothing_else():
    path = CONF / "prometheus-alerts.yml"
    head, *rules = re.split(r"(?=      - alert: )", path.read_text())
    assert head.splitlines()[1:] == ["groups:", "  - name: pylog", "    rules:"]
    assert [rule for rule in rules if not RULE.fullmatch(rule)] == []
    assert [text for text in expressions() if text.count("(") != text.count(")")] == []
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", path], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit():
    ran = subprocess.run(
        ["systemd-analyze", "verify", CONF / "pylog-broker.service"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if "pylog-broker" in line]) == (0, [])
