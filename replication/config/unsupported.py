"""Settings of Kafka's brokers that there are none of here, and why: for whoever brings a server.properties."""

from __future__ import annotations

from collections.abc import Iterable

# (why there is none, names of Kafka's settings; one that ends with a dot stands for all that begin so)
_ABSENT: tuple[tuple[str, str], ...] = (
    ("one event loop serves all connections of a broker", "num.network.threads"),
    ("the system fits the buffers of a follower's connections to each", "replica.socket.receive.buffer.bytes"),
    ("1024 connections may wait to be accepted", "socket.listen.backlog.size"),
    (
        "a broker waits 15 s for ZooKeeper when it starts; then zookeeper.session.timeout.ms counts",
        "zookeeper.connection.timeout.ms",
    ),
    (
        "a broker decides by itself how it speaks to ZooKeeper",
        "zookeeper.sync.time.ms zookeeper.max.in.flight.requests",
    ),
    ("flush.ms of a topic is looked at with every append", "log.flush.scheduler.interval.ms"),
    ("where a log starts is stored at once, when records are deleted", "log.flush.start.offset.checkpoint.interval.ms"),
    ("addresses are given as listeners=PLAINTEXT://HOST:PORT", "host.name port"),
    ("give the address as advertised.listeners=PLAINTEXT://HOST:PORT", "advertised.host.name advertised.port"),
    (
        "controllers and brokers meet where inter.broker.listener.name says",
        "control.plane.listener.name early.start.listeners",
    ),
    (
        "a PEM file has no password, only the key in it: ssl.key.password",
        "ssl.keystore.password ssl.truststore.password",
    ),
    (
        "TLS is OpenSSL's, with ssl.enabled.protocols and ssl.cipher.suites, and certificates are read as PEM",
        "ssl.protocol ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.engine.factory.class "
        "ssl.secure.random.implementation ssl.allow. security.providers",
    ),
    ("users are what ssl.principal.mapping.rules makes of certificates, or who logged in", "principal.builder.class"),
    ("clients log in by PLAIN, SCRAM or OAUTHBEARER", "sasl.kerberos. sasl.login."),
    (
        "a token of OAUTHBEARER is checked with the keys at sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.header.urlencode "
        "sasl.oauthbearer.jwks.endpoint.retry. sasl.oauthbearer.jwt. sasl.oauthbearer.client. "
        "sasl.oauthbearer.assertion.",
    ),
    ("no code of others runs in a broker", "sasl.server.callback.handler.class sasl.client.callback.handler.class"),
    ("a message of a login has 64 KiB at most", "sasl.server.max.receive.size"),
    (
        "each mechanism has a line of its own, with its name in front",
        "sasl.jaas.config",
    ),
    ("there are no delegation tokens", "delegation.token."),
    ("passwords are as they are given in the file", "password.encoder."),
    (
        "the connection to ZooKeeper is without TLS and login",
        "zookeeper.ssl. zookeeper.clientCnxnSocket zookeeper.set.acl",
    ),
    (
        "brokers find each other by coordination or zookeeper.connect, and each has its broker.id",
        "process.roles node.id controller.quorum. controller.listener.names metadata.log. metadata.max. "
        "initial.broker.registration.timeout.ms "
        "broker.heartbeat.interval.ms broker.session.timeout.ms zookeeper.metadata.migration.enable",
    ),
    ("every broker is given its broker.id", "broker.id.generation.enable reserved.broker.max.id"),
    ("a cluster is upgraded broker by broker without it", "inter.broker.protocol.version"),
    (
        "records have one format, Kafka's second, and go to clients as they are",
        "log.message.format.version log.message.downconversion.enable",
    ),
    (
        "there is one limit for each side: log.message.timestamp.before.max.ms, log.message.timestamp.after.max.ms",
        "log.message.timestamp.difference.max.ms",
    ),
    (
        "a leader decides by itself how often it asks a coordinator, and transactions are read as fast as they come",
        "add.partitions. transaction.state.log.load.buffer.size transaction.state.log.compression.codec",
    ),
    (
        "default quotas are live: `pylog configs alter --entity-type clients --entity-default`",
        "quota.producer.default quota.consumer.default",
    ),
    (
        "replicas are held back over a second, by leader.replication.throttled.rate and "
        "follower.replication.throttled.rate",
        "alter.log.dirs.replication.quota. replication.quota.",
    ),
    ("each follower has a fetch session, and clients have none", "max.incremental.fetch.session.cache.slots"),
    (
        "requests that wait are forgotten within a quarter of replica.lag.time.max.ms once they are answered",
        "fetch.purgatory. producer.purgatory. delete.records.purgatory.",
    ),
    (
        "one log at a time is compacted, with 128 MiB for the keys",
        "log.cleaner.threads log.cleaner.dedupe.buffer.size log.cleaner.io.",
    ),
    ("num.io.threads and one thread for maintenance do it", "background.threads num.replica.alter."),
    ("segments grow with what is written", "log.preallocate"),
    ("commits wait for all replicas in sync", "offsets.commit.required.acks"),
    (
        "offsets are read as fast as they come, and written uncompressed",
        "offsets.load.buffer.size offsets.topic.compression.codec",
    ),
    (
        "brokers wait for each other's answers by replica.socket.timeout.ms",
        "controller.socket.timeout.ms request.timeout.ms",
    ),
    ("no code of others runs in a broker", "alter.config.policy. client.quota. create.topic.policy."),
    (
        "metrics are Prometheus's, at metrics.port",
        "metric. metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "kafka.metrics. auto.include.jmx.reporter client.telemetry. telemetry.",
    ),
    (
        "targets are made at once for all that came together, where the group is kept",
        "group.consumer.assignment. group.consumer.min.assignment. group.consumer.max.assignment. "
        "group.consumer.assignor.offload. group.consumer.regex. group.share.assignment. group.share.min.assignment. "
        "group.share.max.assignment. group.share.assignor.offload. group.share.initialize.",
    ),
    (
        "states of shared partitions are read and written as fast as they come, by the event loop",
        "share.coordinator.threads share.coordinator.append.linger.ms share.coordinator.load.buffer.size "
        "share.coordinator.state.topic.compression.codec share.coordinator.cached.buffer.max.bytes share.fetch.",
    ),
    ("no code of others runs in a broker", "group.share.persister.class.name group.share.dlq.manager.class.name"),
    (
        "there are groups of the classic and of the consumer protocol, and share groups, always",
        "group.coordinator. group.streams.",
    ),
    ("brokers keep logs on their own disks; `pylog jobs tiering` copies records to Delta tables", "remote. log.local."),
)


def reason(key: str) -> str | None:
    """Why there is no such setting; None: it is none of Kafka's, or none that anybody knew of."""
    for why, names in _ABSENT:
        if any(key.startswith(name) if name.endswith(".") else key == name for name in names.split()):
            return why
    return None


def refusal(keys: Iterable[str]) -> str | None:
    """One line about those of these that Kafka has and that are not here; None if there are none."""
    found = {key: why for key in keys if (why := reason(key))}
    if not found:
        return None
    first, *others = found
    line = f"no setting {first!r} here: {found[first]}; leave the line out"
    return f"{line}, and those of {', '.join(others)}" if others else line
