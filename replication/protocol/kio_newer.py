"""Requests of versions that kio does not know yet, in kio's form: its tools take the types of fields as objects."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.index import load_request_schema
from kio.schema.request_header.v2.header import RequestHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Version 5 (KIP-1242): `cluster_id` and `node_id` say which broker the client means; None and -1: any."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(18)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    client_software_name: str = field(metadata={"kafka_type": "string"})
    client_software_version: str = field(metadata={"kafka_type": "string"})
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


_NEWER: dict[tuple[int, int], Any] = {(18, 5): ApiVersionsRequest}


def schema_of(key: int, version: int) -> Any:
    """Return the class of a request: kio's, which takes about 10 ms once, or ours."""
    return _NEWER.get((key, version)) or load_request_schema(key, version)
