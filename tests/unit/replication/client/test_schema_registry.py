"""A registry's REST API is asked with the right credentials, and its refusals are told in one line."""

import base64
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logstore import InvalidConfigError, InvalidRequestError
from logstore.schemas.registry import NoAliasError, UnknownSchemaError
from logstore.schemas.subjects import Schema
from replication.client.registry_settings import NAMES, SETTINGS, registry_of
from replication.client.schema_registry import RegistryError, RestSchemas
from replication.tools.connecting import client_of
from tests.support.secured import Certificates

USER = "ada:a:pässword"
BASIC = f"Basic {base64.b64encode(USER.encode()).decode()}"


class Registry:
    """Answers by (method, path); keeps what it was asked. A context manager."""

    def __init__(self, answers, tls=None):
        registry, self.asked = self, []

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                registry.asked.append((self.command, self.path, self.headers.get("Authorization"), body))
                code, answer = answers.get((self.command, self.path), (404, {"error_code": 40401, "message": "none"}))
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", answer)
                    data = b""
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815  the server's

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' * (tls is not None)}://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def rest(url, **settings):
    return RestSchemas(registry_of({"schema.registry.url": url, **settings}))


ROW = {"subject": "a/b", "version": 2, "id": 7, "schema": '"string"'}


def test_a_subject_is_registered_with_its_credentials_and_looked_up():
    answers = {("POST", "/subjects/a%2Fb/versions"): (200, {"id": 7}), ("POST", "/subjects/a%2Fb"): (200, ROW)}
    with Registry(answers) as registry:
        entry = rest(registry.url, **{"basic.auth.user.info": USER}).register("a/b", Schema("JSON", "{}"))
        assert (entry.version, entry.id, entry.schema.type) == (2, 7, "JSON")
        body = {"schema": "{}", "schemaType": "JSON"}
        assert registry.asked == [
            ("POST", "/subjects/a%2Fb/versions", BASIC, body),
            ("POST", "/subjects/a%2Fb", BASIC, body),
        ]


def test_credentials_of_the_address_are_sent_and_never_shown():
    with Registry({("GET", "/subjects"): (401, {"error_code": 401, "message": "Unauthorized"})}) as registry:
        secret = registry.url.replace("//", "//ada:a%3Ap%C3%A4ssword@")
        with pytest.raises(
            RegistryError, match=r"refused it: Unauthorized \(401\): check basic.auth.user.info"
        ) as caught:
            rest(secret).subjects()
        assert registry.asked[0][2] == BASIC
        assert "ssword" not in f"{caught.value}{registry_of({'schema.registry.url': secret})}"


def test_an_id_is_asked_for_once():
    with Registry({("GET", "/schemas/ids/7"): (200, {"schema": '"string"'})}) as registry:
        schemas = rest(registry.url)
        assert schemas.by_id(7) == schemas.by_id(7) == Schema("AVRO", '"string"')
        assert len(registry.asked) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {}), "without a schema for id 7"),
        ((200, {"schema": None}), "without a schema for id 7"),
        ((200, "x"), "with other JSON than was asked for"),
        ((404, b"<html>"), "(404): is it the address of a registry?"),
        ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "(404): is it the address of a registry?"),
    ],
)
def test_what_is_no_answer_of_a_registry_does_not_say_that_an_id_is_unknown(answer, words):
    """An unknown id makes misfits of its records, which may be dropped."""
    with Registry({("GET", "/schemas/ids/7"): answer}) as registry:
        with pytest.raises(RegistryError) as caught:
            rest(registry.url).by_id(7)
        assert words in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_lists_that_are_none_are_told():
    with Registry({("GET", "/subjects"): (200, {}), ("GET", "/subjects/s/versions"): (200, 5)}) as registry:
        for ask in (rest(registry.url).subjects, lambda: rest(registry.url).versions("s")):
            with pytest.raises(RegistryError, match="with other JSON than was asked for"):
                ask()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((404, {"error_code": 40401, "message": "Subject 's' not found."}), UnknownSchemaError, "not found. (40401)"),
        ((409, {"error_code": 409, "message": "incompatible:\nreader"}), InvalidRequestError, "incompatible: reader"),
        ((422, {"error_code": 42201, "message": "Invalid"}), InvalidRequestError, "Invalid (42201)"),
        ((500, b"<html>"), RegistryError, "Internal Server Error (500)"),
        ((200, b"<html>"), RegistryError, "is it the address of a registry?"),
        ((200, {"id": 1}), RegistryError, "without subject, version and id"),
        ((301, "http://127.0.0.1:1/elsewhere"), RegistryError, "(301)"),
        ((200, [1]), RegistryError, "with other JSON than was asked for: is it the address of a registry?"),
        ((200, ROW | {"schema": 5}), RegistryError, "without subject, version and id"),
        ((200, ROW | {"references": [1]}), RegistryError, "without subject, version and id"),
        ((200, b"[" * 50_000), RegistryError, "is it the address of a registry?"),
        ((404, b"<html>"), RegistryError, "(404): is it the address of a registry?"),
    ],
)
def test_a_refusal_is_an_error_of_its_kind_in_one_line(answer, error, words):
    with Registry({("GET", "/subjects/s/versions/latest"): answer}) as registry:
        with pytest.raises(error) as caught:
            rest(registry.url).latest("s")
        assert words in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert len(registry.asked) == 1


def test_the_next_address_is_asked_where_one_does_not_answer():
    with Registry({("GET", "/subjects"): (200, ["b", "a"])}) as registry:
        assert rest(f"http://127.0.0.1:1,{registry.url}/").subjects() == ["a", "b"]
    with pytest.raises(RegistryError, match=r"no registry answers; http://127.0.0.1:1: .*refused"):
        rest("http://127.0.0.1:1").subjects()


def test_the_next_address_answers_a_question_at_which_one_fails_and_nothing_is_written_twice():
    fails = dict.fromkeys([("GET", "/subjects"), ("PUT", "/config")], (503, b"<html>"))
    works = {("GET", "/subjects"): (200, ["a"]), ("PUT", "/config"): (200, {"compatibility": "FULL"})}
    with Registry(fails) as one, Registry(works) as other:
        both = rest(f"{one.url},{other.url}")
        assert both.subjects() == ["a"]
        with pytest.raises(RegistryError, match=r"Service Unavailable \(503\)$"):
            both.set_level("FULL")
        assert [asked[0] for asked in other.asked] == ["GET"]


def test_levels_and_deletions_have_the_words_of_the_api():
    answers = {
        ("GET", "/config"): (200, {"compatibilityLevel": "FULL"}),
        ("GET", "/config/s?defaultToGlobal=true"): (404, {"error_code": 40408, "message": "none of its own"}),
        ("PUT", "/config/s"): (200, {"compatibility": "NONE"}),
        ("DELETE", "/config/s"): (200, {"compatibilityLevel": "NONE"}),
        ("DELETE", "/subjects/s/versions/2"): (200, 2),
        ("DELETE", "/subjects/s?permanent=true"): (200, [1, 2]),
    }
    with Registry(answers) as registry:
        schemas = rest(registry.url)
        assert schemas.level("s") == "FULL"
        schemas.set_level("none", "s")
        assert registry.asked[-1][3] == {"compatibility": "NONE"}
        schemas.set_level(None, "s")
        assert schemas.delete("s", 2) == [2]
        assert schemas.delete("s", permanently=True) == [1, 2]


def test_a_subject_stands_for_another_one_where_the_registry_knows_that():
    row = {"subject": "shop.Order", "version": 1, "id": 3, "schema": '"int"'}
    latest = {("GET", "/subjects/shop.Order/versions/latest"): (200, row)}
    with Registry(latest | {("GET", "/config/o"): (200, {"alias": "shop.Order"})}) as registry:
        schemas = rest(registry.url)
        schemas.set_alias("o", "shop.Order")
        assert registry.asked[-2][3] == {"alias": "shop.Order"}
        assert schemas.alias("o") == "shop.Order"
    with Registry(latest) as registry, pytest.raises(NoAliasError, match="has no aliases"):
        rest(registry.url).set_alias("o", "shop.Order")


def test_a_schema_is_checked_by_the_registry():
    path = "/compatibility/subjects/{}/versions/latest?verbose=true".format
    answers = {
        ("POST", path("good")): (200, {"is_compatible": True}),
        ("POST", path("bad")): (200, {"is_compatible": False, "messages": ["reader\nmissing"]}),
    }
    with Registry(answers) as registry:
        schemas, schema = rest(registry.url), Schema("AVRO", '"int"')
        assert schemas.check("good", schema) == schemas.check("new", schema) == []
        assert schemas.check("bad", schema) == ["reader missing"]
        assert registry.asked[0][3] == {"schema": '"int"'}


def test_tls_believes_the_named_authority_only(tmp_path):
    made = Certificates.make(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made / "server.pem", made / "server.key")
    with Registry({("GET", "/subjects"): (200, [])}, tls) as registry:
        assert rest(registry.url, **{"schema.registry.ssl.ca.location": made / "ca.pem"}).subjects() == []
        with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
            rest(registry.url, **{"schema.registry.ssl.ca.location": made / "other.pem"}).subjects()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schema.registry.url": "registry:8081"}, "each address begins with http:// or https://"),
        ({"schema.registry.urls": "http://a"}, "did you mean 'schema.registry.url'"),
        ({"basic.auth.user.info": "ada"}, "user and password with a colon between them"),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, "USER_INFO or URL"),
        ({"schema.registry.ssl.ca.location": "ca.pem"}, "it needs an address that begins with https://"),
    ],
)
def test_a_wrong_setting_is_told_before_anybody_is_asked(settings, words):
    with pytest.raises(InvalidConfigError) as caught:
        registry_of({"schema.registry.url": "http://registry:8081", **settings})
    assert words in str(caught.value)


def test_the_properties_of_a_client_may_name_a_registry():
    with (
        Registry({("GET", "/subjects"): (200, ["a"])}) as registry,
        client_of("127.0.0.1:1", {"schema.registry.url": registry.url}, client_id="test") as client,
    ):
        assert client.schemas.subjects() == ["a"]


def test_the_page_names_every_setting():
    page = (Path(__file__).parents[4] / "docs" / "schemas.md").read_text()
    assert set(re.findall(r"^\| `(schema\.registry\.[\w.]+)`", page, re.MULTILINE)) == NAMES
    assert {"schema.registry." + name for name in SETTINGS - NAMES} < NAMES
