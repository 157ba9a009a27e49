"""What schedulers learn of requests that an executor has begun, before it grants them anything: the
executor's side of first runs (docs/protocols.md). Pure.

    event                              decided
    a session begins                   it knows what its hello named
    a session ends                     grants are held
    a session asks what was begun for  it learns what is new, once no session with that scheduler
    a lost scheduler                   is open or ending
    what that one has begun is known   each session learns what is new, or that nothing is; then the
                                       grants, if no other session is ending
    claims are granted                 each session learns what is new, then the grants; or they are
                                       held

A scheduler to which an instance is granted may run a request again that was begun here for another
one, and so has to know that first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from nereid_executor.instances.claims.model_claims import Grant


class BegunReport(NamedTuple):
    """A scheduler is to be notified that these requests have begun. query: that it replies to."""

    session: Hashable
    ids: list[int]
    query: int = 0


class _Query(NamedTuple):
    session: Hashable
    number: int
    scheduler: str


class BegunReports:
    """One executor's. Decisions are to be carried out in their order."""

    def __init__(self, begun_ids: Callable[[], Sequence[int]]) -> None:
        """begun_ids: the requests that have begun, under any session."""
        self._begun_ids = begun_ids
        # The open sessions, oldest first, and what each knows to be begun. A scheduler that has not
        # accepted the executor yet gets its reports behind the hello.
        self._known: dict[Hashable, set[int]] = {}
        # Those that have ended, and whose requests are not all known yet.
        self._ending: set[Hashable] = set()
        self._held: list[Grant] = []
        # By session, until it has ended: its scheduler, once that has asked for an instance. Before
        # that nothing is begun for it.
        self._schedulers: dict[Hashable, str] = {}
        self._queries: list[_Query] = []

    def session_joined(self, session: Hashable, hello_ids: Iterable[int]) -> None:
        """A hello that names these requests was sent to a scheduler."""
        self._known[session] = set(hello_ids)

    def session_commanded(self, session: Hashable, scheduler: str) -> None:
        """A scheduler of this name asks for an instance."""
        self._schedulers[session] = scheduler

    def session_asks(self, session: Hashable, number: int, scheduler: str) -> list[BegunReport]:
        """A scheduler asks what was begun for another one, which is lost."""
        self._queries.append(_Query(session, number, scheduler))
        return self._reply_to_queries()

    def session_disconnected(self, session: Hashable) -> None:
        """Nothing can be reported to it any more."""
        self._known.pop(session, None)
        self._queries = [each for each in self._queries if each.session != session]

    def session_ending(self, session: Hashable) -> None:
        """The scheduler is lost; its instances finish what they execute."""
        self._ending.add(session)
        self.session_disconnected(session)

    def session_ended(self, session: Hashable) -> list[BegunReport | Grant]:
        """Most of its instances have finished: what was begun under it is known."""
        self._ending.discard(session)
        self._schedulers.pop(session, None)
        return [*self._report(always=True), *self._reply_to_queries(), *self.grant(())]

    def grant(self, grants: Iterable[Grant]) -> list[BegunReport | Grant]:
        """Sessions may have these instances."""
        self._held += grants
        if not self._held or self._ending:
            return []
        granted, self._held = self._held, []
        return [*self._report(), *granted]

    def _reply_to_queries(self) -> list[BegunReport]:
        served = set(self._schedulers.values())
        queries, self._queries = self._queries, []
        reports = []
        for each in queries:
            if each.scheduler in served:
                self._queries.append(each)
            else:
                reports.append(self._news_of(each.session, each.number))
        return reports

    def _news_of(self, session: Hashable, query: int = 0) -> BegunReport:
        known, ids = self._known[session], self._begun_ids()
        self._known[session] = set(ids)
        return BegunReport(session, [each for each in ids if each not in known], query)

    def _report(self, *, always: bool = False) -> list[BegunReport]:
        """always: even if there is nothing new."""
        reports = [self._news_of(each) for each in self._known]
        return [each for each in reports if each.ids or always]
