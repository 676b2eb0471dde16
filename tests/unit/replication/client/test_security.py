"""Settings of TLS and SASL, and SCRAM against the examples of its RFCs."""

import pickle
import re
from pathlib import Path

import pytest

from logstore.errors import InvalidConfigError
from replication.client.security import PLAINTEXT, SETTINGS, Security, security_of
from replication.security.scram import Exchange, ScramError

PAGE = (Path(__file__).parents[4] / "docs" / "client.md").read_text()
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
PLAIN = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_settings_of_kafka_and_of_librdkafka_say_the_same():
    kafkas = {
        **SCRAM,
        "sasl.jaas.config": f'  {MODULE} required\n  username="a\\"da"\n  password=\'s=e;c\\\\\' ;',
        "ssl.truststore.type": "pem",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/client.pem",
        "ssl.key.password": "key",
        "ssl.endpoint.identification.algorithm": "",
    }
    librdkafkas = {
        **SCRAM,
        "sasl.username": 'a"da',
        "sasl.password": "s=e;c\\",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.password": "key",
        "ssl.endpoint.identification.algorithm": "none",
    }
    found = security_of(kafkas)
    assert found == security_of(librdkafkas)
    assert found == Security(
        has_tls=True,
        ca_file="/ca.pem",
        certificate_file="/client.pem",
        key_password="key",
        checks_host_name=False,
        mechanism="SCRAM-SHA-512",
        username='a"da',
        password="s=e;c\\",
    )
    assert security_of(found.settings) == found
    assert pickle.loads(pickle.dumps(found)) == found  # Spark's executors get it so
    assert "s=e" not in repr(found)
    assert "'key'" not in repr(found)


@pytest.mark.parametrize("given", [{}, {"security.protocol": "PLAINTEXT"}, {"security.protocol": "SSL"}])
def test_what_is_left_out_has_kafkas_defaults(given):
    found = security_of(given)
    assert found == (Security(has_tls=True) if given.get("security.protocol") == "SSL" else PLAINTEXT)
    assert found.checks_host_name
    assert security_of(found.settings) == found


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"security.protocol": "TLS"}, "security.protocol: one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl.ca.location": "a"}, "ssl.ca.location: it needs security.protocol=SSL or SASL_SSL"),
        ({"security.protocol": "SSL", "sasl.username": "a"}, "sasl.username: it needs security.protocol=SASL_SSL"),
        ({"ssl.ca.loction": "a"}, "did you mean 'ssl.ca.location'"),
        ({"sasl.mechanisms": "PLAIN"}, "here it is sasl.mechanism"),
        ({"ssl.truststore.password": "secret"}, "a PEM file has none"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "a"}, "default is JKS: set it to PEM; .*keytool -exp"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "a", "ssl.keystore.type": "JKS"},
            "only PEM is read.*openssl pkcs12 -in",
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "a",
                "ssl.truststore.location": "b",
                "ssl.truststore.type": "PEM",
            },
            "ssl.truststore.location says the same: leave one away",
        ),
        ({"security.protocol": "SSL", "ssl.key.password": "secret"}, "it needs the certificate"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "https, or empty"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: GSSAPI is not spoken here: set it to one of PLAIN, SCRAM"),
        (SCRAM | {"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER is not spoken here"),
        (SCRAM | {"sasl.password": "secret"}, "sasl.username: SCRAM-SHA-512 needs it, or sasl.jaas.config"),
        (PLAIN | {"sasl.jaas.config": f"{MODULE} required username=a password=secret;"}, "PLAIN needs .*plain.Plain"),
        (
            SCRAM | {"sasl.jaas.config": f"{MODULE} required username=a password=secret"},
            "sasl.jaas.config: SCRAM-SHA-512 needs .*scram.Scram",
        ),
        (
            SCRAM | {"sasl.jaas.config": f"{MODULE} required username=a password=secret tokenauth=true;"},
            "username and password are read, each once",
        ),
        (SCRAM | {"sasl.jaas.config": f'{MODULE} required username=a password="secret;'}, "each once"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line_without_a_password(given, line):
    with pytest.raises(InvalidConfigError, match=line) as caught:
        security_of(given, "kafka.")
    assert str(caught.value).startswith("kafka.s")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_setting_is_in_the_table_of_the_page():
    assert set(re.findall(r"^\| `([a-z.]+)` \|", PAGE, re.MULTILINE)) == SETTINGS


# The conversations in RFC 5802 (section 5) and RFC 7677 (section 3), of "user" with the password "pencil".
RFC = {
    "SCRAM-SHA-1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "SCRAM-SHA-256": (
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("mechanism", RFC)
def test_the_conversations_of_the_rfcs_are_held(mechanism):
    nonce, challenge, proof, signature = RFC[mechanism]
    exchange = Exchange(mechanism, "user", "pencil", nonce)
    assert exchange.first == f"n,,n=user,r={nonce}".encode()
    assert exchange.final(challenge.encode()) == proof.encode()
    exchange.check(signature.encode())


def test_a_name_is_escaped():
    assert Exchange("SCRAM-SHA-256", "a=b,c", "p", "N").first == b"n,,n=a=3Db=2Cc,r=N"


@pytest.mark.parametrize(
    ("challenge", "line"),
    [
        (b"r=other,s=QSXC,i=4096", "nonce"),
        (b"r=N,s=QSXC,i=4096", "nonce"),
        (b"r=Nx,s=QSXC,i=4095", "'4095' iterations"),
        (b"r=Nx,s=QSXC,i=1000001", "iterations"),
        (b"r=Nx,s=QSXC,i=-1", "iterations"),
        (b"r=Nx,s=*,i=4096", "base64"),
        (b"m=x,r=Nx,s=QSXC,i=4096", "extension"),
        (b"\xff", "no text"),
    ],
)
def test_a_challenge_that_is_none_is_not_answered(challenge, line):
    with pytest.raises(ScramError, match=line):
        Exchange("SCRAM-SHA-256", "user", "p", "N").final(challenge)


@pytest.mark.parametrize("answer", [b"v=", b"v=AAAA", b"", b"e=other-error", b"v=*", b"p=rmF9pqV8S7suAoZWja4dJRkFsKQ="])
def test_a_server_without_the_password_is_not_believed(answer):
    nonce, challenge, *_ = RFC["SCRAM-SHA-1"]
    exchange = Exchange("SCRAM-SHA-1", "user", "pencil", nonce)
    exchange.final(challenge.encode())
    with pytest.raises(ScramError):
        exchange.check(answer)


def test_nobody_is_believed_before_the_proof():
    with pytest.raises(ScramError):
        Exchange("SCRAM-SHA-256", "user", "p", "N").check(b"v=")
