"""AclAuthorizer: the authorizer that goes by ACLs, and answers what was asked before from a cache.

The cache is of one generation of the rules: any change of an ACL ends it, so that no request which comes afterwards is
answered by the ACLs before. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from replication.security.access import BROKER, NOTHING, Context, Need, Resource
from replication.security.acl import Entry, Pattern
from replication.security.acl_rules import Client, Rules, Verdict
from replication.security.hosts import host_of

CONTEXTS_KEPT, ANSWERS_KEPT = 10_000, 100_000  # some 20 MB

Answers: TypeAlias = dict[Need, bool]
_ALL: Answers = {}  # of clients that may do everything


class AclAuthorizer:
    """`super_users` may do all, and so may brokers.

    `allows_unsaid`: everybody may do everything with a resource that no ACL concerns.
    """

    def __init__(self, super_users: Collection[str] = (), *, allows_unsaid: bool = False) -> None:
        self.rules = Rules()
        self.generation = 0  # of the rules
        self._super_users = frozenset(super_users)
        self._allows_unsaid = allows_unsaid
        # By the id of a context, which stays its own as long as it is kept here.
        self._known: dict[int, tuple[Context, Client, Answers]] = {}
        self._answers: dict[Client, Answers] = {}
        self._kept = 0

    def put(self, pattern: Pattern, entries: Collection[Entry]) -> None:
        """Let these be all ACLs of a pattern, for every request from now on."""
        self.rules.put(pattern, entries)
        self.generation += 1
        self._forget()

    def keep(self, patterns: Collection[Pattern]) -> None:
        """Forget the ACLs of all other patterns."""
        for gone in self.rules.patterns() - set(patterns):
            self.put(gone, ())

    def refused(self, context: Context, needs: Callable[[Any], Sequence[Need]], request: Any) -> Collection[Need]:
        """Return those of `needs(request)` that this connection does not have; NOTHING if it has all of them."""
        known = self._known.get(id(context))
        _, client, answers = known if known is not None else self._meet(context)
        if answers is _ALL:
            return NOTHING
        refused: set[Need] | None = None
        for need in needs(request):
            answer = answers.get(need)
            if answer is None:
                answer = self._answer(client, answers, need)
            if not answer:
                refused = refused or set()
                refused.add(need)
        return refused or NOTHING

    def _meet(self, context: Context) -> tuple[Context, Client, Answers]:
        client = Client(str(context.principal), host_of(context.host))
        is_free = context.principal == BROKER or client.principal in self._super_users
        if len(self._known) >= CONTEXTS_KEPT:
            self._forget()
        answers = _ALL if is_free else self._answers.setdefault(client, {})
        found = self._known[id(context)] = context, client, answers
        return found

    def _answer(self, client: Client, answers: Answers, need: Need) -> bool:
        if self._kept >= ANSWERS_KEPT:
            self._forget()
        self._kept += 1
        answers[need] = answer = self._grants(client, need)
        return answer

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
