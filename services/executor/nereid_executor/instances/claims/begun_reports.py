"""Reports of begun requests, which schedulers get before they are granted instances.

This is the executor's side of first runs (docs/protocols.md). The module does no I/O.

    event                              decision
    a session begins                   it knows the requests that its hello named
    a session ends                     grants are held
    a session asks what was begun for  it gets a report of new requests once no session with that
    a lost scheduler                   scheduler is open or ending
    an ended session's begun requests  each session gets a report, even if it has no news; then the
    are all known                      grants, if no other session is ending
    claims are granted                 each session gets a report of new requests, then the grants,
                                       unless these are held

A scheduler that gets an instance could run a request that this executor has already begun for
another scheduler. Therefore the scheduler must first be told of such requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from nereid_executor.instances.claims.model_claims import Grant


class BegunReport(NamedTuple):
    """A report to a scheduler that these requests have begun. query: 0 without a query."""

    session: Hashable
    ids: list[int]
    query: int = 0


class _Query(NamedTuple):
    session: Hashable
    number: int
    scheduler: str


class BegunReports:
    """The reports of one executor. The caller carries out the returned decisions in their order."""

    def __init__(self, begun_ids: Callable[[], Sequence[int]]) -> None:
        self._begun_ids = begun_ids
        # Key: an open session, oldest first. Value: the begun requests that its scheduler knows. A
        # scheduler that has not accepted yet gets reports after the hello.
        self._known: dict[Hashable, set[int]] = {}
        # Sessions that have ended, but whose begun requests are not all known yet.
        self._ending: set[Hashable] = set()
        self._held: list[Grant] = []
        # Key: a session that has not ended. Value: its scheduler's name, once it has asked for an
        # instance. Nothing is begun for a scheduler before that.
        self._schedulers: dict[Hashable, str] = {}
        self._queries: list[_Query] = []

    def session_joined(self, session: Hashable, hello_ids: Iterable[int]) -> None:
        """Note that a scheduler was sent a hello, which names these requests."""
        self._known[session] = set(hello_ids)

    def session_commanded(self, session: Hashable, scheduler: str) -> None:
        """Note that the scheduler of this name has asked for an instance."""
        self._schedulers[session] = scheduler

    def session_asks(self, session: Hashable, number: int, scheduler: str) -> list[BegunReport]:
        """Record a query for a lost scheduler's begun requests; return the reports due now."""
        self._queries.append(_Query(session, number, scheduler))
        return self._reply_to_queries()

    def session_disconnected(self, session: Hashable) -> None:
        """Note that nothing can be reported to a session any more."""
        self._known.pop(session, None)
        self._queries = [query for query in self._queries if query.session != session]

    def session_ending(self, session: Hashable) -> None:
        """Note that a scheduler is lost, and that its instances finish what they execute."""
        self._ending.add(session)
        self.session_disconnected(session)

    def session_ended(self, session: Hashable) -> list[BegunReport | Grant]:
        """Note that an ended session's begun requests are known; return the decisions."""
        self._ending.discard(session)
        self._schedulers.pop(session, None)
        return [*self._report(always=True), *self._reply_to_queries(), *self.grant(())]

    def grant(self, grants: Iterable[Grant]) -> list[BegunReport | Grant]:
        """Let sessions have these instances; return the reports and grants to send now.

        Grants are held while the begun requests of an ended session are not all known.
        """
        self._held += grants
        if not self._held or self._ending:
            return []
        granted, self._held = self._held, []
        return [*self._report(), *granted]

    def _reply_to_queries(self) -> list[BegunReport]:
        served = set(self._schedulers.values())
        queries, self._queries = self._queries, []
        reports = []
        for query in queries:
            if query.scheduler in served:
                self._queries.append(query)
            else:
                reports.append(self._news_of(query.session, query.number))
        return reports

    def _news_of(self, session: Hashable, query: int = 0) -> BegunReport:
        known, ids = self._known[session], self._begun_ids()
        self._known[session] = set(ids)
        return BegunReport(session, [number for number in ids if number not in known], query)

    def _report(self, *, always: bool = False) -> list[BegunReport]:
        reports = [self._news_of(session) for session in self._known]
        return [report for report in reports if report.ids or always]
