"""Schemas of a registry behind its REST API: that of Confluent's, which Karapace and Apicurio speak, too.

Nothing is repeated but at another address of `schema.registry.url`, where one cannot be connected to, or fails to
answer a question. An id is asked for once. No message shows a password, and no redirection is followed: it would get
the password, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from logstore.errors import InvalidRequestError, PylogError, did_you_mean
from logstore.schemas.registry import NoAliasError, UnknownSchemaError
from logstore.schemas.subjects import AVRO, LEVELS, Reference, Registered, Schema
from replication.client.registry_settings import USER_INFO, RegistrySettings
from replication.network.authentication import tls_context

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
_TYPE = "application/vnd.schemaregistry.v1+json"
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 401, 403, 404, 409, 422
_FAILED = 500  # and above: the registry did, not the question
_NO_ROW = (KeyError, TypeError, ValueError, AttributeError)


class RegistryError(PylogError):
    """The registry cannot be reached, or failed."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class RestSchemas:
    """`logstore.schemas.registry.Schemas` of a registry. Safe for threads."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        context = None if settings.tls is None else tls_context(settings.tls)
        self._opener: OpenerDirector = build_opener(_NoRedirects, HTTPSHandler(context=context))
        self._by_id: dict[int, Schema] = {}

    @property
    def where(self) -> str:
        return ", ".join(self._settings.urls)

    def subjects(self, *, with_deleted: bool = False) -> list[str]:
        return sorted(map(str, self._ask("GET", "/subjects" + "?deleted=true" * with_deleted, kind=list)))

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[Registered]:
        shown = self._ask("GET", f"{_of(subject)}/versions", kind=list)
        numbers = self._ask("GET", f"{_of(subject)}/versions?deleted=true", kind=list) if with_deleted else shown
        found = []
        for number in sorted(numbers):
            is_deleted = number not in shown
            path = f"{_of(subject)}/versions/{number}" + "?deleted=true" * is_deleted
            found.append(self._registered(self._ask("GET", path), is_deleted=is_deleted))
        return found

    def latest(self, subject: str) -> Registered:
        return self._registered(self._ask("GET", f"{_of(subject)}/versions/latest"))

    def by_id(self, schema_id: int) -> Schema:
        if (known := self._by_id.get(schema_id)) is None:
            row = self._ask("GET", f"/schemas/ids/{schema_id}")
            try:
                known = self._by_id[schema_id] = _schema(row)
            except _NO_ROW:
                raise RegistryError(
                    f"the registry at {self.where} answers without a schema for id {schema_id}"
                ) from None
        return known

    def register(self, subject: str, schema: Schema) -> Registered:
        body = _body(schema)
        self._ask("POST", f"{_of(subject)}/versions", body)
        # Apicurio leaves the type out of this answer.
        return self._registered(self._ask("POST", _of(subject), body))._replace(schema=schema)

    def check(self, subject: str, schema: Schema) -> list[str]:
        path = f"/compatibility{_of(subject)}/versions/latest?verbose=true"
        try:
            found = self._ask("POST", path, _body(schema))
        except UnknownSchemaError:
            return []  # nothing is before it
        if found.get("is_compatible"):
            return []
        return [" ".join(str(said).split()) for said in found.get("messages") or ["it is not compatible"]]

    def delete(self, subject: str, version: int | None = None, *, permanently: bool = False) -> list[int]:
        path = _of(subject) if version is None else f"{_of(subject)}/versions/{version}"
        gone = self._ask("DELETE", path + "?permanent=true" * permanently, kind=(list, int))
        return [int(number) for number in (gone if isinstance(gone, list) else [gone])]

    def level(self, subject: str | None = None) -> str:
        if subject is not None:
            try:
                return self._level(self._ask("GET", f"/config/{quote(subject, safe='')}?defaultToGlobal=true"))
            except UnknownSchemaError:
                pass  # it has none of its own
        return self._level(self._ask("GET", "/config"))

    def set_level(self, level: str | None, subject: str | None = None) -> None:
        if level is not None and level.upper() not in LEVELS:
            raise InvalidRequestError(f"compatibility level {level!r}{did_you_mean(level.upper(), LEVELS)}")
        path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
        if level is None:
            self._ask("DELETE", path, kind=object)
        else:
            self._ask("PUT", path, {"compatibility": level.upper()})

    def alias(self, subject: str) -> str | None:
        try:
            return self._ask("GET", f"/config/{quote(subject, safe='')}").get("alias") or None
        except UnknownSchemaError:
            return None

    def set_alias(self, subject: str, other: str | None) -> None:
        """Set it, where the registry has aliases, as Confluent's has; None: the subject loses its level, too."""
        path = f"/config/{quote(subject, safe='')}"
        if other is None:
            self._ask("DELETE", path, kind=object)
            return
        self.latest(other)
        with suppress(InvalidRequestError, RegistryError):  # of another word than a level
            self._ask("PUT", path, {"alias": other})
        if self.alias(subject) != other:
            raise NoAliasError(f"the registry at {self.where} has no aliases")

    # ---------------------------------------------------------------- private

    def _registered(self, row: Any, *, is_deleted: bool = False) -> Registered:
        try:
            return Registered(str(row["subject"]), int(row["version"]), int(row["id"]), _schema(row), is_deleted)
        except _NO_ROW:
            raise RegistryError(f"the registry at {self.where} answers without subject, version and id") from None

    def _level(self, row: Any) -> str:
        return str(row.get("compatibilityLevel") or row.get("compatibility"))

    def _ask(self, method: str, path: str, body: Any = None, *, kind: type | tuple[type, ...] = dict) -> Any:
        """Return the answer, of this kind. Raises: UnknownSchemaError, InvalidRequestError, RegistryError."""
        said = ""
        for url in self._settings.urls:
            try:
                with self._opener.open(self._request(method, url + path, body), timeout=TIMEOUT_S) as answer:
                    return _decoded(url, answer.read(ANSWER_BYTES_MAX), kind)
            except HTTPError as error:
                refusal = _refusal(url, error)
                if error.code < _FAILED or method != "GET":
                    raise refusal from None
                said += f"; {refusal}"
            except (URLError, HTTPException, OSError) as error:
                said += f"; {url}: {getattr(error, 'reason', None) or error}"
        raise RegistryError(f"no registry answers{said}")

    def _request(self, method: str, url: str, body: Any) -> Request:
        headers = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE}
        if self._settings.authorization:
            headers["Authorization"] = self._settings.authorization
        data = None if body is None else json.dumps(body).encode()
        return Request(url, data, headers, method=method)


def _of(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


def _body(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.type != AVRO:
        body["schemaType"] = schema.type
    if schema.references:
        body["references"] = [each._asdict() for each in schema.references]
    return body


def _schema(row: Any) -> Schema:
    references = [Reference(r["name"], r["subject"], int(r["version"])) for r in row.get("references") or ()]
    if not isinstance(row["schema"], str):
        raise TypeError
    return Schema(str(row.get("schemaType") or AVRO), row["schema"], tuple(references))


def _decoded(url: str, data: bytes, kind: type | tuple[type, ...]) -> Any:
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        raise RegistryError(f"{url} answers with something else than JSON: is it the address of a registry?") from None
    if not isinstance(found, kind):
        raise RegistryError(f"{url} answers with other JSON than was asked for: is it the address of a registry?")
    return found


def _refusal(url: str, error: HTTPError) -> PylogError:
    """Return the error that an answer stands for, in one line."""
    with error:
        try:
            found = json.loads(error.read(ANSWER_BYTES_MAX))
            said, code = str(found["message"]), int(found.get("error_code", error.code))
        except (*_NO_ROW, RecursionError):
            said, code = str(error.reason), error.code
    said = f"the registry at {url} refused it: {' '.join(said.split())} ({code})"
    if error.code == _NOT_FOUND and code != _NOT_FOUND:
        return UnknownSchemaError(said)
    if error.code in (_CONFLICT, _UNPROCESSABLE):
        return InvalidRequestError(said)
    hint = f": check {USER_INFO}" if error.code in (_UNAUTHORIZED, _FORBIDDEN) else ""
    if error.code == _NOT_FOUND:  # nothing of a registry is here: that no schema has an id would drop its records
        hint = ": is it the address of a registry?"
    return RegistryError(f"{said}{hint}")
