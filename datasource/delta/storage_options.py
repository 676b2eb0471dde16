"""How an object store is reached: the URLs of tables there, and deltalake's storage options; values, without I/O.

An option is named as deltalake names it, in either case: `AWS_ACCESS_KEY_ID`, `aws_access_key_id`. The environment
variables of these names count as well, those that no option gives. No error, repr or log shows a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from logstore.errors import InvalidConfigError, PylogError, did_you_mean

# The options of each kind of store; those under "" are of all. docs/operations.md has them, and a test compares.
OPTIONS: dict[str, tuple[str, ...]] = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ALLOW_HTTP",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    ),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_TENANT_ID",
        "AZURE_STORAGE_USE_EMULATOR",
    ),
    "": ("TIMEOUT", "CONNECT_TIMEOUT", "MAX_RETRIES", "RETRY_TIMEOUT", "PROXY_URL"),
}
NAMES = tuple(name for names in OPTIONS.values() for name in names)
# A job may not wait for minutes for a store that is not there; deltalake's own limit is 3 minutes a request.
LIMITS = {"CONNECT_TIMEOUT": "5s", "MAX_RETRIES": "5", "RETRY_TIMEOUT": "15s"}
_SECRETS = tuple(name for name in NAMES if re.search("KEY|SECRET|TOKEN", name))
_OTHER_NAMES = {  # schemes that people write for ours
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
    "adl": "az",
}
_VALUES = {
    "TIMEOUT": r"\d+(ms|s|m)",
    "CONNECT_TIMEOUT": r"\d+(ms|s|m)",
    "RETRY_TIMEOUT": r"\d+(ms|s|m)",
    "MAX_RETRIES": r"\d+",
    "AWS_ALLOW_HTTP": "(?i)true|false",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "(?i)true|false",
    "AZURE_STORAGE_USE_EMULATOR": "(?i)true|false",
    "AWS_ENDPOINT_URL": "https?://[^@]+",
    "PROXY_URL": "https?://.+",
}
_EXAMPLES = {r"\d+(ms|s|m)": "a time like 5s", r"\d+": "a whole number", "(?i)true|false": "true or false"}


class ObjectStoreError(PylogError):
    """An object store cannot be reached, or refuses: one line that says what to do. It was asked often enough."""


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Checked options, by the names in `NAMES`; `repr` shows these alone."""

    given: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(name for name, _ in self.given)})"

    def for_deltalake(self) -> dict[str, str]:
        return {name.lower(): value for name, value in (LIMITS | dict(self.given)).items()}

    def check_scheme(self, scheme: str) -> None:
        """Raise InvalidConfigError for an option that means nothing to a table with this scheme ("": a directory)."""
        for name, _ in self.given:
            if not scheme:
                raise InvalidConfigError(
                    f"storage option {name}: the table is a directory; a table in an object store is named by its "
                    "URL, s3://, gs:// or az://",
                    option=name,
                )
            if name not in (*OPTIONS[scheme], *OPTIONS[""]):
                raise InvalidConfigError(
                    f"storage option {name} means nothing to {scheme}://; there are {', '.join(OPTIONS[scheme])} and, "
                    f"for all stores, {', '.join(OPTIONS[''])}",
                    option=name,
                )

    def secrets(self) -> Iterator[str]:
        """The values that nobody may see, those of the environment, too; longer ones first.

        A shorter value than four characters is no secret: without it the text would be no text.
        """
        known = {os.environ.get(name, "") for name in _SECRETS} | {v for name, v in self.given if name in _SECRETS}
        yield from sorted((value for value in known if len(value) > 3), key=len, reverse=True)


NONE = StorageOptions()


def storage_options(given: Mapping[str, str], prefix: str = "") -> StorageOptions:
    """Check the options; `prefix` precedes their names in errors. Raises: InvalidConfigError."""
    found: dict[str, str] = {}
    for written, text in given.items():
        name, value = written.strip().upper(), str(text).strip()
        if name not in NAMES:
            raise InvalidConfigError(
                f"storage option {prefix}{written} is not known{did_you_mean(name, NAMES)}", option=written
            )
        if name in found:
            raise InvalidConfigError(f"storage option {prefix}{written} is given twice", option=written)
        pattern = _VALUES.get(name, ".+")
        if not re.fullmatch(pattern, value):
            wanted = _EXAMPLES.get(
                pattern, "it is empty" if not value else "a URL that begins with http:// or https://"
            )
            raise InvalidConfigError(f"storage option {prefix}{written}: {wanted}", option=written)
        found[name] = value
    return StorageOptions(tuple(sorted(found.items())))


def scheme_of(table: str) -> str:
    """Return the scheme of an object store's URL, "" for a directory.

    Raises: InvalidConfigError: it looks like a URL, and is none of an object store's.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", table)
    if found is None or found[1].lower() == "file":
        return ""
    scheme, rest = found[1].lower(), table[found.end() :].lstrip("/")
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"  # no user, no signature
    meant = _OTHER_NAMES.get(scheme, scheme)
    if meant not in OPTIONS:
        raise InvalidConfigError(
            f"table {shown}: {scheme}:// is no object store here; write s3://, gs:// or az://, or a directory",
            option="table",
        )
    bucket, _, path = rest.partition("/")
    if meant != scheme or not table.startswith(f"{meant}://"):
        place = (
            f"{meant}://CONTAINER/path"
            if meant == "az" and meant != scheme
            else f"{meant}://{shown[len(scheme) + 3 :]}"
        )
        raise InvalidConfigError(f"table {shown}: write {place}", option="table")
    if "@" in bucket or re.search(r"[?#%\s]", rest):
        raise InvalidConfigError(
            f"table {shown}: a bucket and a path, without '@', '?', '#', '%' and blanks; secrets go into storage "
            "options or environment variables",
            option="table",
        )
    if not bucket or not path.strip("/"):
        raise InvalidConfigError(
            f"table {shown}: name a bucket and a path in it: {scheme}://BUCKET/path", option="table"
        )
    return scheme


_HINTS = (
    (r"NoSuchBucket|ContainerNotFound|bucket does not exist", "the bucket does not exist: create it, or name another"),
    (
        r"169\.254\.169\.254|metadata\.google|loading credentials|Missing\w*Credential",
        "no credentials: give {keys}",
    ),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidClientTokenId", "the credentials are wrong: check {keys}"),
    (
        r"40[13] |AccessDenied|Unauthenticated|Unauthorized|Forbidden|AuthenticationFailed",
        "access is denied: check {keys}",
    ),
    (r"URL scheme is not allowed", "the endpoint is http://: AWS_ALLOW_HTTP=true allows that"),
    (r"[Cc]onnection refused|dns error|timed out|error sending request", "the object store cannot be reached"),
)
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def one_line(error: BaseException, options: StorageOptions = NONE) -> str:
    """Return what deltalake says as one line: no colours, users or queries of URLs, bodies of answers, nor secrets."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    text = re.sub(r"<\?xml.*?(?:<Code>(.*?)</Code>.*)?$", lambda found: found[1] or "", text, flags=re.DOTALL)
    for secret in options.secrets():
        text = text.replace(secret, "***")
    text = re.sub(r"(https?://)(?:[^\s/?]*@)?([^\s?]*)(?:\?\S*)?", r"\1\2", text)
    parts = [part for line in text.splitlines() if (part := line.strip(" \t↳:"))]
    if asked := re.search(r"Error performing ([A-Z]+ \S+)", text):
        parts = [asked[1], parts[-1]]  # not the time and the retries, nor each layer of the client
    return ": ".join(parts)


def explained(error: BaseException, scheme: str, options: StorageOptions) -> str:
    """Return the line of an error of a store with a hint what to do before it, if there is one."""
    line = one_line(error, options)
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, f"{error} ")), "")
    return f"{hint.format(keys=_KEYS[scheme])} ({line})" if hint else line
