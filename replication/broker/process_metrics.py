"""Metrics of the machine's resources that a broker uses, and of its clients."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from logstore.env import SYSTEM, machine
from replication.broker.families import Family, counter, gauge
from replication.network.admission import Admission


def process() -> Iterable[Family]:
    """CPU, memory and descriptors, by the names that Prometheus' own libraries have."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds", ({}, used.ru_utime + used.ru_stime))
    yield gauge("process_max_fds", ({}, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    if (descriptors := machine.open_descriptors(SYSTEM.files)) is not None:
        yield gauge("process_open_fds", ({}, descriptors))
    if (resident := machine.resident_bytes(SYSTEM.files)) is not None:
        yield gauge("process_resident_memory_bytes", ({}, resident))


def clients(admission: Admission) -> Iterable[Family]:
    """Connections, and requests that are in work."""
    limits = admission.limits
    yield gauge("kafka_server_socketservermetrics_connection_count", ({}, len(admission.connections)))
    yield counter("pylog_connections_refused", ({}, admission.refused))
    yield counter("pylog_connections_misused", ({}, admission.misused))
    yield counter("pylog_throttled_requests", ({}, admission.throttled))
    yield counter("pylog_throttled_seconds", ({}, admission.throttled_ms / 1000))
    yield gauge("kafka_network_requestchannel_requestqueuesize", ({}, admission.in_work))
    idle = max(0.0, 1 - admission.in_work / limits.queued_max_requests)
    yield gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent", ({}, idle))
