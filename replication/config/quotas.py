"""The settings of quotas: the windows in which they count, and how many connections may come from where."""

from __future__ import annotations

import re
from dataclasses import dataclass

from logstore.config import INT32_MAX, keyed, setting
from replication.config.listener_settings import ListenerSettings

_HOST_COUNT = re.compile(r"(?:[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%\w+)?|localhost):[0-9]{1,9}")

SAMPLES_MAX, SECONDS_MAX = 1000, 3600


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings(ListenerSettings):  # as `RightsSettings`
    # ------------------------------------------------------------ quotas
    quota_window_num: int = setting(
        11, "Samples in which the quotas of clients and addresses are counted.", minimum=1, maximum=SAMPLES_MAX
    )
    quota_window_size_seconds: int = setting(
        1, "How long each of these samples is, in seconds; for the time of requests, nobody waits longer.",
        minimum=1, maximum=SECONDS_MAX,
    )  # fmt: skip
    controller_quota_window_num: int = setting(
        11, "Samples of controller_mutation_rate: so many seconds' worth of partitions may come at once.",
        minimum=1, maximum=SAMPLES_MAX,
    )  # fmt: skip
    controller_quota_window_size_seconds: int = setting(
        1, "How long each of these samples is, in seconds.", minimum=1, maximum=SECONDS_MAX
    )
    max_connections_per_ip: int = setting(
        INT32_MAX, "Connections from one address; the broker closes further ones at once.", minimum=0,
        maximum=INT32_MAX, is_live=True,
    )  # fmt: skip
    max_connections_per_ip_overrides: frozenset[str] = setting(
        frozenset(), "The same for single addresses, as ADDRESS:COUNT.", each=_HOST_COUNT,
        form="addresses with their counts, as 127.0.0.1:200,::1:10", is_live=True,
    )  # fmt: skip
