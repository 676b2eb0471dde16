"""AclAuthorizer: the authorizer that goes by ACLs, and answers what was asked before from a cache.

Any change of an ACL ends the cache, so that no request which comes afterwards is answered by the ACLs before. Belongs
to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from replication.security.access import BROKER, NAME_KEPT_MAX, NOTHING, Context, Need, Resource
from replication.security.acl import Entry, Pattern
from replication.security.acl_rules import Client, Rules, Verdict
from replication.security.hosts import host_of

CONTEXTS_KEPT, ANSWERS_KEPT = 10_000, 100_000  # some 20 MB; 120 with the longest names


class Answers(NamedTuple):
    """The rights that a client was found to have, and not to have; `granted` None: it may do everything."""

    client: Client
    granted: set[Need] | None
    refused: set[Need]


class AclAuthorizer:
    """`super_users` may do all, and so may brokers.

    `allows_unsaid`: everybody may do everything with a resource that no ACL concerns.
    """

    has_rights = True

    def __init__(self, super_users: Collection[str] = (), *, allows_unsaid: bool = False) -> None:
        self.rules = Rules()
        self._super_users = frozenset(super_users)
        self._allows_unsaid = allows_unsaid
        # By the id of a context, which is nobody else's as long as the context is kept here.
        self._known: dict[int, tuple[set[Need] | None, Answers, Context]] = {}
        self._answers: dict[Client, Answers] = {}
        self._kept = 0

    @property
    def kept(self) -> tuple[int, int]:
        """The number of connections and of answers in the cache."""
        return len(self._known), self._kept

    def put(self, pattern: Pattern, entries: Collection[Entry]) -> None:
        """Let these be all ACLs of a pattern, for every request from now on."""
        self.rules.put(pattern, entries)
        self._forget()

    def keep(self, patterns: Collection[Pattern]) -> None:
        """Forget the ACLs of all other patterns."""
        for gone in set(self.rules.patterns()).difference(patterns):
            self.put(gone, ())

    def refused(self, context: Context, needs: Callable[[Any], Sequence[Need]], request: Any) -> Collection[Need]:
        """Return those of `needs(request)` that this connection does not have; NOTHING if it has all of them."""
        known = self._known.get(id(context)) or self._meet(context)
        granted = known[0]
        if granted is None:
            return NOTHING
        refused: set[Need] | None = None
        for need in needs(request):
            if need not in granted and not self._answer(known[1], need):
                if refused is None:
                    refused = set()
                refused.add(need)
        return NOTHING if refused is None else refused

    def _meet(self, context: Context) -> tuple[set[Need] | None, Answers, Context]:
        client = Client(str(context.principal), host_of(context.host))
        is_free = context.principal.kind == BROKER.kind or client.principal in self._super_users
        if len(self._known) >= CONTEXTS_KEPT:
            self._forget()
        answers = self._answers.get(client)
        if answers is None:
            answers = Answers(client, None if is_free else set(), set())
            self._answers[client] = answers
        found = self._known[id(context)] = answers.granted, answers, context
        return found

    def _answer(self, known: Answers, need: Need) -> bool:
        """Return whether the client has a right that it is not known to have."""
        if need in known.refused or known.granted is None:
            return False
        is_granted = self._grants(known.client, need)
        if len(need.name) <= NAME_KEPT_MAX:
            if self._kept >= ANSWERS_KEPT:
                self._forget()
            self._kept += 1
            (known.granted if is_granted else known.refused).add(need)
        return is_granted

    def _forget(self) -> None:
        self._known.clear()
        self._answers.clear()
        self._kept = 0

    def _grants(self, client: Client, need: Need) -> bool:
        operation, resource, name, instead = need
        if resource is Resource.SOME_TOPIC:
            verdict = self.rules.verdict_anywhere(client, operation, Resource.TOPIC)
        else:
            verdict = self.rules.verdict(client, operation, resource, name)
        if verdict is Verdict.ALLOWED or (verdict is Verdict.UNSAID and self._allows_unsaid):
            return True
        return instead is not None and self._grants(client, instead)
