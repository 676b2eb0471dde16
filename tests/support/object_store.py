"""A local S3 (moto) in a process of its own: deltalake keeps Python's lock while it waits for some answers.

`faults` are done by the server before or after moto sees a request: as a network does them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

KEY, SECRET = "AKIDOFTHETESTS", "secret/of+the/tests=="
REFUSED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InvalidAccessKeyId</Code>'
    b"<Message>The AWS Access Key Id you provided does not exist in our records.</Message></Error>"
)


def storage_value(name: str) -> str:
    """A value that the storage option of this name may have."""
    name = name.upper()
    if name.endswith(("HTTP", "STYLE_REQUEST", "EMULATOR")):
        return "true"
    return "http://a" if name.endswith("URL") else "3s" if "TIMEOUT" in name else "1"


@dataclass(frozen=True)
class Store:
    """The server, with one bucket, `lake`; `options` reach it."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def spark_options(self) -> dict[str, str]:
        return {f"storage.{name.lower()}": value for name, value in self.options.items()}

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"}
        request = Request(f"http://127.0.0.1:{self.port}{path}", body or None, headers, method=method)
        with urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def make_bucket(self, name: str) -> None:
        self._ask("PUT", f"/{name}")

    def keys(self, prefix: str) -> list[str]:
        """The names of the objects below `lake/<prefix>`, relative to it."""
        text = self._ask("GET", f"/lake?list-type=2&prefix={prefix}/").decode()
        return [part.partition("</Key>")[0].removeprefix(f"{prefix}/") for part in text.split("<Key>")[1:]]

    def content(self, name: str) -> bytes:
        return self._ask("GET", f"/lake/{name}")

    def fault(self, kind: str, method: str, contains: str, times: int = 1) -> None:
        """Do this with the next requests of that method whose path contains that.

        `lost`: do it, and close the connection without an answer. `gone`: as `lost`, and from then on answer 500 to
        everything. `broken`: answer 500, and do nothing.
        """
        rule = {"kind": kind, "method": method, "contains": contains, "times": times}
        self._ask("POST", "/_faults", json.dumps(rule).encode())

    def mend(self) -> None:
        self._ask("DELETE", "/_faults")

    def asked(self) -> int:
        """How many requests were answered so far, without those of this class."""
        return int(self._ask("GET", "/_asked"))


@contextmanager
def running() -> Iterator[Store]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.object_store"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        store = Store(int(process.stdout.readline()))
        store.make_bucket("lake")
        yield store
    finally:
        process.stdin.close()  # at which it ends
        process.stdout.close()
        process.wait(60)


class Faulty:
    """moto behind a network that does what it is told."""

    def __init__(self, app: Any) -> None:
        self._app, self._rules, self._asked, self._is_gone = app, list[dict[str, Any]](), 0, False

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/_asked":
            start_response("200 OK", [])
            return [str(self._asked).encode()]
        if path == "/_faults":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            self._rules = [*self._rules, json.loads(environ["wsgi.input"].read(size))] if method == "POST" else []
            self._is_gone = False
            start_response("200 OK", [])
            return [b""]
        if f"Credential={KEY}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [REFUSED]
        self._asked += 1
        if self._is_gone:
            start_response("500 Internal Server Error", [])
            return [b""]
        for rule in self._rules:
            if rule["times"] > 0 and rule["method"] == method and rule["contains"] in path:
                rule["times"] -= 1
                if rule["kind"] == "broken":
                    start_response("500 Internal Server Error", [])
                    return [b""]
                list(self._app(environ, lambda *answer: None))
                if rule["kind"] == "gone":
                    self._is_gone = True
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionAbortedError
        return self._app(environ, start_response)


def main() -> None:
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    server = make_server("127.0.0.1", 0, Faulty(DomainDispatcherApplication(create_backend_app)), threaded=True)
    print(server.server_port, flush=True)
    import threading

    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
