"""The settings of rights: whether a broker checks them, and for whom it does not."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.config import keyed, setting
from logstore.errors import InvalidConfigError
from replication.config.quotas import QuotaSettings

# Kafka's classes of authorizer.class.name: both go by the same ACLs.
ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class RightsSettings(QuotaSettings):  # not beside it: a class has one base with slots
    # ------------------------------------------------------------ rights
    authorizer_class_name: str = setting(
        "",
        "Check every request against ACLs, by one of Kafka's names for that? Empty: everybody who reaches the port may "
        "do everything. Set it on all brokers.",
        choices=("", STANDARD_AUTHORIZER, ACL_AUTHORIZER),
    )
    super_users: str = setting(
        "", "Principals that may do everything, between semicolons: User:admin;User:CN=ops,O=example."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "May everybody do everything with a resource that no ACL concerns?"
    )

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer_class_name)

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.super_users.split(";") if part.strip())

    def check_rights(self) -> None:
        """Raises: InvalidConfigError: somebody would believe in rights that nobody checks."""
        given = {"super.users": self.super_users, "allow.everyone.if.no.acl.found": self.allow_everyone_if_no_acl_found}
        for key, value in given.items():
            if value and not self.has_authorizer:
                raise InvalidConfigError(
                    f"{key} acts with authorizer.class.name={STANDARD_AUTHORIZER} only, without which no rights are "
                    "checked",
                    key=key,
                )
        for principal in self.super_principals:
            kind, _, name = principal.partition(":")
            if not kind or not name:
                raise InvalidConfigError(
                    f"super.users: {principal!r} is no principal: give TYPE:NAME, such as User:alice, and a semicolon "
                    "between two of them",
                    key="super.users",
                )
