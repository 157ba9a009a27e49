"""Reports of this gateway's counts to the schedulers, for rollouts and for people."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from nereid_gateway.extras.shadows.exchanges import ModelCounts
    from nereid_gateway.plane.control.control import Control


class CountReports:
    """Sends counts of shadows to the scheduler that has the model."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._gateway = int.from_bytes(os.urandom(8))

    async def send(self, model: str, shadow: str, counts: ModelCounts) -> None:
        """Report a model's counts. The next report makes up for one that fails."""
        message = pb.ShadowCounts(
            gateway=self._gateway,
            shadow=shadow,
            compared=counts.compared,
            differing=counts.differing,
        )
        request = pb.ModelTrafficRequest(model=model, counts=message)
        with suppress(NereidError):
            await self._control.call("ModelTraffic", request, pb.ModelTrafficResponse)
