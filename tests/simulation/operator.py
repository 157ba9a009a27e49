"""An operator of a simulated mesh: loads and unloads one model, again and again, and holds the mesh
to what it has acknowledged, whichever of its processes end meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.pb import kserve_pb2
from tests.torment.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.simulation.gateways import GatewayHost
    from tests.simulation.surroundings import Surroundings
    from tests.torment.disruptions import Occurrence
    from tests.torment.history import Request

# It is asked for all the time, loaded or not.
TOGGLED: Final = "large"
_PAUSE_S: Final = (1.0, 8.0)
# A call that a gateway has taken with it.
_PATIENCE_S: Final = 20.0
_REFUSED: Final = frozenset({"NOT_FOUND", "UNAVAILABLE"})


@dataclass
class _Unloaded:
    """From when an unload was acknowledged until it may be loaded again."""

    began_s: float
    ended_s: float = float("inf")


class Operator:
    """Used outside of all processes; its calls are made by gateways."""

    def __init__(self, where: Surroundings, gateways: Sequence[GatewayHost]) -> None:
        self._where = where
        self._gateways = gateways
        self._unloaded: list[_Unloaded] = []
        self._ended = False

    async def run(self) -> None:
        """Until end(); the model is loaded then."""
        choices = self._where.random
        loaded = True
        while not self._ended:
            await asyncio.sleep(choices.uniform(*_PAUSE_S))
            loaded = not loaded
            if not await self._call(load=loaded):
                # It may be either, until a call is acknowledged.
                loaded = choices.random() < 0.5
        while not await self._call(load=True):
            await asyncio.sleep(1.0)

    def end(self) -> None:
        """Load it once more, and no more calls."""
        self._ended = True

    async def _call(self, *, load: bool) -> bool:
        host = self._where.random.choice(self._gateways)
        loop, history = self._where.loop, self._where.history
        gateway, process = host.gateway, host.process
        if load and self._unloaded and self._unloaded[-1].ended_s == float("inf"):
            self._unloaded[-1].ended_s = loop.time()
        if gateway is None or process is None:
            return False
        what = "RepositoryModelLoad" if load else "RepositoryModelUnload"
        request = (
            kserve_pb2.RepositoryModelLoadRequest(model_name=TOGGLED)
            if load
            else kserve_pb2.RepositoryModelUnloadRequest(model_name=TOGGLED)
        )
        call = gateway.control.call_bytes(what, request.SerializeToString())
        done, _ = await asyncio.wait({loop.spawn(process, call)}, timeout=_PATIENCE_S)
        for each in done:
            try:
                each.result()
            except NereidError as error:
                history.add("operator", f"{what}: {error}")
            else:
                history.add("operator", f"{what} done")
                if not load:
                    self._unloaded.append(_Unloaded(loop.time()))
                return True
        return False

    # ---- afterwards

    @staticmethod
    def is_refused(request: Request) -> bool:
        """Whether the model may have been unloaded."""
        return request.model == TOGGLED and request.status in _REFUSED

    def served_unloaded(
        self, requests: Iterable[Request], occurrences: Sequence[Occurrence]
    ) -> list[int]:
        """The requests that were served after an unload was acknowledged, and before a load; while
        no disk failed, which excuses that it was forgotten.
        """
        wrong = []
        for unloaded in self._unloaded:
            if any(
                each.disruption.kind.startswith("disk")
                and each.began_s <= unloaded.ended_s
                and each.ended_s >= unloaded.began_s - 1.0
                for each in occurrences
            ):
                continue
            wrong += [
                each.id
                for each in requests
                if each.model == TOGGLED
                and each.outcome is Outcome.OK
                and unloaded.began_s < each.began_s
                and each.ended_s < unloaded.ended_s
            ]
        return wrong
