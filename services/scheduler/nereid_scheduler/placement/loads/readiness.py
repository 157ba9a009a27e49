"""Readiness queries to models that implement a readiness check.

An instance has one query at a time, which callers share.
"""

from __future__ import annotations

import asyncio
import time
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import ReadinessQuestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid_scheduler.core.instances.remote_instance import BatchStream, RemoteInstance
    from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session
    from nereid_scheduler.placement.models.catalogue import ServedVersion

    # One list for each executor.
    _Pending = list[list[asyncio.Future[bool]]]

# Triton's limit for the same query.
READY_TIMEOUT_S: Final = 5.0
# Seconds for a process to report that it has begun to ask its model. Otherwise it is hung.
_ASKED_TIMEOUT_S: Final = 1.5


class Readiness:
    """Readiness queries to the models on one scheduler's executors."""

    def __init__(
        self, sessions: Callable[[], Collection[Session]], ask_limit_s: float = _ASKED_TIMEOUT_S
    ) -> None:
        self._sessions = sessions
        self._ask_limit_s = ask_limit_s
        self._numbers = count(1)

    async def are_ready(
        self, versions: Iterable[ServedVersion], limit_s: float = READY_TIMEOUT_S
    ) -> bool:
        """Return whether all versions with a readiness check report in time that they are ready."""
        pending = [responses for served in versions if (responses := self._query(served))]
        futures = set(chain.from_iterable(chain.from_iterable(pending)))
        until = time.monotonic() + limit_s
        while (ready := _are_all_ready(pending)) is None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            _, futures = await asyncio.wait(
                futures, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
        return ready

    def _query(self, served: ServedVersion) -> _Pending:
        pending = []
        queried = False
        for session in self._sessions():
            hosted = session.hosted.get(served)
            if hosted is None or not hosted.completed or not hosted.ready:
                continue
            responses = [
                self._query_instance(session, instance, instance.stream)
                for instance in hosted.instances.values()
                if instance.reports_readiness and instance.stream is not None
            ]
            queried = queried or bool(responses)
            pending.append(responses)
        return pending if queried else []

    def _query_instance(
        self, session: Session, instance: RemoteInstance, stream: BatchStream
    ) -> asyncio.Future[bool]:
        pending = instance.question
        if pending is not None and pending.stream is stream and not pending.response.done():
            return pending.response
        loop = asyncio.get_running_loop()
        response: asyncio.Future[bool] = loop.create_future()
        question = instance.question = ReadinessQuestion(next(self._numbers), stream, response)
        query = pb.ReadinessQuery(question=question.number, instance=instance.id)
        session.send(pb.ExecutorCommand(readiness_query=query))
        silence = loop.call_later(self._ask_limit_s, _end_unasked, question)
        response.add_done_callback(lambda _: silence.cancel())
        return response


def on_readiness_report(
    placed: PlacedInstance | None, session: Session, report: pb.ReadinessReport
) -> None:
    """Handle an executor's report. Ignore a report that belongs to no pending query."""
    question = None if placed is None else placed.instance.question
    if placed is None or placed.session is not session or question is None:
        return
    if question.number == report.question and not question.response.done():
        if report.asked:
            question.asked = True
        else:
            question.response.set_result(report.ready)


def _end_unasked(question: ReadinessQuestion) -> None:
    if not question.asked and not question.response.done():
        question.response.set_result(False)


def _are_all_ready(pending: Iterable[_Pending]) -> bool | None:
    def known(of_executor: list[asyncio.Future[bool]]) -> list[bool | None]:
        return [response.result() if response.done() else None for response in of_executor]

    ready = [is_version_ready([*map(known, responses)]) for responses in pending]
    if False in ready:
        return False
    return None if None in ready else True


def is_version_ready(responses: list[list[bool | None]]) -> bool | None:
    """Return whether a version is ready; `None` if more responses are needed to tell.

    responses: one list for each executor. As for loading, a version is ready once all instances of
    one executor are ready.
    """
    if any(all(of_executor) for of_executor in responses):
        return True
    return False if all(False in of_executor for of_executor in responses) else None
