"""Whether models call themselves ready: asks those that have something to say, and waits.

An instance is asked one question at a time; whoever wants to know meanwhile waits for its answer.
Judges nothing but what models say: whether they are in service is known to the catalogue.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.services.scheduler.executors.instance import BatchStream, Instance
    from nereid.services.scheduler.executors.sessions import Placed, Session
    from nereid.services.scheduler.models.catalogue import ServedVersion

# Triton's limit for the same.
LIMIT_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Question:
    """A question to an instance, until it has another: the model's worker may be another then."""

    number: int
    stream: BatchStream
    response: asyncio.Future[bool]


class Readiness:
    """Asks the models of one scheduler's executors."""

    def __init__(self, sessions: Callable[[], Collection[Session]]) -> None:
        self._sessions = sessions
        self._numbers = count(1)

    async def are_ready(self, versions: Iterable[ServedVersion], limit_s: float = LIMIT_S) -> bool:
        """Whether each of them calls itself ready, or has nothing to say of that.

        One that does not answer in time is not ready.
        """
        parties = [party for served in versions if (party := self._ask(served))]
        if not parties:
            return True
        until = time.monotonic() + limit_s
        while (decided := _verdict_on(parties)) is None:
            open_ = {
                each for party in parties for part in party for each in part if not each.done()
            }
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            await asyncio.wait(open_, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return decided

    def _ask(self, served: ServedVersion) -> list[list[asyncio.Future[bool]]]:
        """The answers to come, by executor; none if no instance has something to say."""
        party = []
        asked = False
        for session in self._sessions():
            part = session.parts.get(served)
            if part is None or not part.completed or not part.ready:
                continue
            responses = [
                self._response_of(session, each, each.stream)
                for each in part.instances.values()
                if each.tells_ready and each.stream is not None
            ]
            asked = asked or bool(responses)
            party.append(responses)
        return party if asked else []

    def _response_of(
        self, session: Session, instance: Instance, stream: BatchStream
    ) -> asyncio.Future[bool]:
        known = instance.question
        if known is not None and known.stream is stream and not known.response.done():
            return known.response
        response: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        question = instance.question = Question(next(self._numbers), stream, response)
        ask = pb.ReadinessQuery(question=question.number, instance=instance.id)
        session.send(pb.ExecutorCommand(readiness_query=ask))
        return response


def heard(placed: Placed | None, session: Session, told: pb.ReadinessReport) -> None:
    """An executor has an answer. To what is not asked any more, it is nobody's."""
    question = None if placed is None else placed.instance.question
    if placed is None or placed.session is not session or question is None:
        return
    if question.number == told.question and not question.response.done():
        question.response.set_result(told.ready)


def _verdict_on(parties: Iterable[list[list[asyncio.Future[bool]]]]) -> bool | None:
    told = [
        verdict([[each.result() if each.done() else None for each in part] for part in party])
        for party in parties
    ]
    if False in told:
        return False
    return None if None in told else True


def verdict(party: list[list[bool | None]]) -> bool | None:
    """Whether a version is ready, by what is known of its instances on each executor.

    As with those that are loaded: it is where all instances of one executor are. None: not decided.
    """
    if any(all(part) for part in party):
        return True
    return False if all(False in part for part in party) else None
