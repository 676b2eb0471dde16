"""Requests of all versions of an API have one type: every field can be read, whatever the version."""

import random
from collections import defaultdict
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass, replace
from typing import get_args, get_origin, get_type_hints

import pytest

from replication.protocol import apis, requests
from replication.protocol.apis import ENTITIES, ApiKey
from replication.protocol.kio_entities import build, encode_entity
from replication.protocol.kio_newer import request_schema
from tests.support.fuzz import frame_head, frame_of

BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_COMMIT}
EVERY_API = pytest.mark.parametrize("key", sorted(ENTITIES), ids=lambda key: key.name)
SHAPES = 10


def versions(key):
    return range(key.versions.first, key.versions.last + 1)


def test_requests_of_every_other_api_are_values_or_classes_of_ours():
    assert apis.SERVED.keys() - ENTITIES == BY_HAND | apis.INTERBROKER


def is_of(value, kind):
    """Is it of this type, and are all its fields of theirs?"""
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(is_of(item, get_args(kind)[0]) for item in value)
    if type(None) in get_args(kind):
        return value is None or any(is_of(value, inner) for inner in get_args(kind) if inner is not type(None))
    if kind.__module__ == requests.__name__:
        hints = get_type_hints(kind)
        return isinstance(value, kind) and all(is_of(getattr(value, name), hint) for name, hint in hints.items())
    return isinstance(value, kind)


@EVERY_API
def test_a_request_of_every_version_is_of_its_type_and_so_are_its_rows(key):
    rng, kind = random.Random(key), getattr(requests, request_schema(key, key.versions.last).__name__)
    for version in versions(key):
        for _ in range(SHAPES):
            frame = frame_of(key, version, rng)
            body = apis.decode_request(memoryview(frame)).body
            assert is_of(body, kind)
            assert encode_entity(body) == frame[len(frame_head(frame)) :]


def structs(cls):
    yield cls
    for field in fields(cls):
        for kind in (field.type, *get_args(field.type)):
            yield from (found for item in get_args(kind) if is_dataclass(item) for found in structs(item))


@EVERY_API
def test_a_field_that_a_version_lacks_has_the_default_of_the_versions_that_have_it(key):
    defaults = defaultdict(dict)
    for version in versions(key):
        for cls in structs(request_schema(key, version)):
            defaults[cls.__name__].update((field.name, field.default) for field in fields(cls))
    for version in versions(key):
        for cls in structs(apis.request_class(key, version)):
            for name in defaults[cls.__name__].keys() - {field.name for field in fields(cls)}:
                default = defaults[cls.__name__][name]
                assert getattr(cls, name) == default or (default is MISSING and not getattr(cls, name)), name


def test_a_request_is_frozen_and_equal_to_another_with_the_same_fields():
    join = apis.request_class(ApiKey.JOIN_GROUP, 0)
    values = {"group_id": "g", "session_timeout": 1, "member_id": "", "protocol_type": "p", "protocols": ()}
    one, other = build(join, values), build(join, values)
    assert (one, hash(one)) == (other, hash(other))
    assert replace(one, group_id="h") == build(join, values | {"group_id": "h"}) != one
    assert not hasattr(one, "__dict__")
    with pytest.raises(FrozenInstanceError):
        one.group_id = "h"
    with pytest.raises((AttributeError, TypeError)):
        one.group_instance_id = "a field that this version lacks"
