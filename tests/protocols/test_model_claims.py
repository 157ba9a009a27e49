"""Claims of several schedulers on an executor's instances: ModelClaims decides, the world is what
SessionInstances does around it.

A scheduler that takes itself for a model's owner asks for its instances; it may ask for them, give
them up, be cut off and come back in any order, while another one does the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

from nereid_executor.instances.claims.model_claims import Grant, ModelClaims, Rank
from tests.protocols.explorer import Action, Channel, World, explore, explore_random

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

MODEL = "m"


class Command(NamedTuple):
    """What a scheduler sends over its Join stream."""

    kind: str
    instance: int

    def __str__(self) -> str:
        return f"{self.kind} {self.instance}"


class Session:
    """One scheduler's connection, from its hello to its end, as the executor has it."""

    def __init__(self, world: ClaimsWorld, scheduler: Scheduler, number: int) -> None:
        self.world, self.scheduler = world, scheduler
        self.name = f"{scheduler.name}{number}"
        self.rank = Rank(scheduler.epoch, scheduler.name)
        # Asked for, without an instance yet; granted, and executing; to stop after that.
        self.waiting: list[int] = []
        self.active: list[int] = []
        self.stopping: set[int] = set()
        self.ended = False
        self.commands = Channel(f"commands of {self.name}", self._on_command)

    def _on_command(self, message: object) -> None:
        command = cast("Command", message)
        claims = self.world.claims
        if command.kind == "load":
            if claims.claim(MODEL, self, command.instance, self.rank):
                self.active.append(command.instance)
            else:
                self.waiting.append(command.instance)
        elif command.instance in self.active:
            self.stopping.add(command.instance)
        elif command.instance in self.waiting:
            self.waiting.remove(command.instance)
            self.world.grant(claims.release(MODEL, self, command.instance))

    def release(self, instance: int) -> None:
        """An instance that was to stop has finished what it executed."""
        self.active.remove(instance)
        self.stopping.discard(instance)
        self.world.grant(self.world.claims.release(MODEL, self, instance))

    def end(self) -> None:
        """Its stream has ended: what executes goes on, what waits never will."""
        self.ended = True
        self.commands.close()
        self.stopping.update(self.active)
        self.waiting.clear()
        self.world.claims.end_waiting(self)

    def expire(self) -> None:
        """What its instances still execute holds up nobody; they are released later."""
        self.world.expired.add(self)
        self.world.grant(self.world.claims.expire(self))


class Scheduler:
    """Takes itself for the owner, asks for two instances, and may give them up."""

    def __init__(self, world: ClaimsWorld, name: str, epoch: int) -> None:
        self.world, self.name, self.epoch = world, name, epoch
        self.sessions = 0
        self.session: Session | None = None
        self.join()

    def join(self) -> None:
        self.sessions += 1
        self.session = session = Session(self.world, self, self.sessions)
        self.world.sessions.append(session)
        for instance in (1, 2):
            session.commands.send(Command("load", instance))

    def give_up(self) -> None:
        """Another member is the owner now."""
        assert self.session is not None
        for instance in (1, 2):
            self.session.commands.send(Command("unload", instance))
        self.given_up = True

    given_up = False

    def lose(self) -> None:
        assert self.session is not None
        self.session.end()
        self.session = None


class ClaimsWorld(World):
    """One executor and its schedulers."""

    def __init__(
        self, make_claims: Callable[[], ModelClaims] = ModelClaims, *, schedulers: int = 2
    ) -> None:
        self.claims = make_claims()
        self.sessions: list[Session] = []
        self.expired: set[Session] = set()
        # Sessions may end so often.
        self.ends = 2
        self.schedulers = [Scheduler(self, "abc"[n], epoch=n // 2) for n in range(schedulers)]

    def grant(self, grants: list[Grant]) -> None:
        ranks = [each.rank for each in self.sessions if each.waiting]
        for grant in grants:
            session = cast("Session", grant.session)
            assert not session.ended, f"a grant to {session.name}, which has ended"
            assert session.rank == max(ranks), f"{session.name} overtakes one that ranks before it"
            session.waiting.remove(grant.instance)
            session.active.append(grant.instance)

    def actions(self) -> Iterable[Action]:
        for session in self.sessions:
            yield from session.commands.arrivals()
            for instance in sorted(session.stopping):
                text = f"instance {instance} of {session.name} has finished"
                yield Action(f"{session.name}.{instance}", text, partial(session.release, instance))
        for scheduler in self.schedulers:
            name = scheduler.name
            if scheduler.session is None:
                yield Action(name, f"{name} joins again", scheduler.join, disruption=True)
            else:
                if not scheduler.given_up:
                    text = f"{name} gives the model up"
                    yield Action(name, text, scheduler.give_up, disruption=True)
                if self.ends:
                    yield Action(
                        name, f"{name} is lost", partial(self._lose, scheduler), disruption=True
                    )
        for session in self.sessions:
            if session.ended and session.active and session not in self.expired:
                text = f"{session.name} expires"
                yield Action(session.name, text, session.expire, disruption=True)

    def _lose(self, scheduler: Scheduler) -> None:
        self.ends -= 1
        scheduler.lose()

    def check(self) -> None:
        active = [each.name for each in self.sessions if each.active and each not in self.expired]
        assert len(active) <= 1, f"{active} have instances of one model at a time"
        holder = self.claims.holder(MODEL)
        if active:
            assert cast("Session", holder).name == active[0]

    def check_at_rest(self) -> None:
        waiting = [each.name for each in self.sessions if each.waiting]
        if waiting:
            assert any(each.active for each in self.sessions), f"{waiting} wait for nobody"
        if not waiting and not any(each.active for each in self.sessions):
            assert self.claims.holder(MODEL) is None, "held by nobody's instance"

    def fingerprint(self) -> Hashable:
        sessions = tuple(
            (
                each.name,
                each.ended,
                tuple(sorted(each.waiting)),
                tuple(sorted(each.active)),
                tuple(sorted(each.stopping)),
                each in self.expired,
                tuple(map(str, each.commands.messages)),
            )
            for each in self.sessions
        )
        given_up = tuple(scheduler.given_up for scheduler in self.schedulers)
        held = self.claims._models.get(MODEL)
        waiting = () if held is None else tuple(map(_name, held.waiting))
        return sessions, given_up, self.ends, waiting


def _name(session: Hashable) -> str:
    return cast("Session", session).name


WORLDS: dict[str, Callable[[], World]] = {
    f"{schedulers} schedulers": partial(ClaimsWorld, schedulers=schedulers) for schedulers in (2, 3)
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_every_interleaving_up_to_a_bound(world: Callable[[], World]) -> None:
    found = explore(world, reorderings=4, limit=3000)
    assert found.failure is None, str(found.failure)


def test_random_interleavings() -> None:
    found = explore_random(partial(ClaimsWorld, schedulers=3), seeds=range(500))
    assert found.failure is None, str(found.failure)


# ---- deliberate defects


class SharesAModel(ModelClaims):
    """A missing fence: whoever asks gets it."""

    def claim(self, model: str, session: Hashable, instance: int, rank: Rank) -> bool:
        super().claim(model, session, instance, rank)
        return True


class GrantsWhenTheSessionEnds(ModelClaims):
    """A missing fence: the instances of a session that has ended still execute."""

    def end_waiting(self, session: Hashable) -> None:
        super().end_waiting(session)
        self.expire(session)


class ForgetsToPassOn(ModelClaims):
    """A lost wake-up: the last instance is released, and nobody gets the model."""

    def release(self, model: str, session: Hashable, instance: int) -> list[Grant]:
        super().release(model, session, instance)
        return []


class FirstComeFirstServed(ModelClaims):
    """Wrong order: an older epoch overtakes a newer one."""

    def _pass_on(self, model: str, held: object) -> list[Grant]:
        for number, each in enumerate(held.waiting.values()):  # type: ignore[attr-defined]
            each.rank = Rank(-number, "")
        return super()._pass_on(model, held)  # type: ignore[arg-type]


class KeepsTheWaiting(ModelClaims):
    """A leak: a session that has ended still waits, and gets what nobody will release."""

    def end_waiting(self, session: Hashable) -> None:
        """Forget nothing."""


class ReleasesAllAtOnce(ModelClaims):
    """A double release: the first instance to end releases the others with it."""

    def release(self, model: str, session: Hashable, instance: int) -> list[Grant]:
        held = self._models.get(model)
        if held is not None and held.holder == session:
            held.instances.clear()
        return super().release(model, session, instance)


class ForgetsWhoReleases(ModelClaims):
    """A forgotten id: one session's release counts for whoever has the model."""

    def release(self, model: str, session: Hashable, instance: int) -> list[Grant]:
        holder = self.holder(model)
        return super().release(model, session if holder is None else holder, instance)


@pytest.mark.parametrize(
    "defect",
    [
        SharesAModel,
        GrantsWhenTheSessionEnds,
        ForgetsToPassOn,
        FirstComeFirstServed,
        KeepsTheWaiting,
        ReleasesAllAtOnce,
        ForgetsWhoReleases,
    ],
)
def test_deliberate_defects_are_found(defect: type[ModelClaims]) -> None:
    # Which is the next one matters only where two wait.
    schedulers = 3 if defect is FirstComeFirstServed else 2
    found = explore(partial(ClaimsWorld, defect, schedulers=schedulers), reorderings=4)
    assert found.failure is not None
