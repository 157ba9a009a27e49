"""What schedulers learn of requests that an executor has begun, before it grants them anything: the
executor's side of first runs (docs/protocols.md). Pure.

    event                              decided
    a session joins                    it knows what its hello named
    a session ends                     grants are held
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

    from nereid.services.executor.takeover.model_claims import Grant


class BegunReport(NamedTuple):
    """A scheduler is to be notified that these requests have begun."""

    session: Hashable
    ids: list[int]


class BegunReports:
    """One executor's. Decisions are to be carried out in their order."""

    def __init__(self, begun_ids: Callable[[], Sequence[int]]) -> None:
        """begun_ids: the requests that have begun, under any session."""
        self._begun_ids = begun_ids
        # The sessions that schedulers have accepted, oldest first, and what each knows to be begun.
        self._known: dict[Hashable, set[int]] = {}
        # Those that have ended, and whose requests are not all known yet.
        self._ending: set[Hashable] = set()
        self._held: list[Grant] = []

    def session_joined(self, session: Hashable, hello_ids: Iterable[int]) -> None:
        """A scheduler has accepted the executor, whose hello named these requests."""
        self._known[session] = set(hello_ids)

    def session_ending(self, session: Hashable) -> None:
        """The scheduler is lost; its instances finish what they execute."""
        self._ending.add(session)
        self._known.pop(session, None)

    def session_ended(self, session: Hashable) -> list[BegunReport | Grant]:
        """Most of its instances have finished: what was begun under it is known."""
        self._ending.discard(session)
        return [*self._report(always=True), *self.grant(())]

    def grant(self, grants: Iterable[Grant]) -> list[BegunReport | Grant]:
        """Sessions may have these instances."""
        self._held += grants
        if not self._held or self._ending:
            return []
        granted, self._held = self._held, []
        return [*self._report(), *granted]

    def _report(self, *, always: bool = False) -> list[BegunReport]:
        """always: even if there is nothing new."""
        if not self._known:
            return []
        ids = self._begun_ids()
        reports = []
        for session, known in self._known.items():
            new = [each for each in ids if each not in known]
            if new or always:
                reports.append(BegunReport(session, new))
            self._known[session] = set(ids)
        return reports
