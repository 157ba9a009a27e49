"""What the controllers of Deployments and StatefulSets do: make the pods, and replace them one by
one, each when its successor is available.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from tests.deploy.cluster.pod import End, Pod
from tests.support.chart.rendering import Object
from tests.support.waiting import until

# Makes and starts a pod.
PodMaker = Callable[[str, Object], Awaitable[Pod]]

_LOOK_S: Final = 0.1
# A replacement that takes longer will never be available.
_PATIENCE_S: Final = 300.0


class Workload:
    """The pods of a Deployment or a StatefulSet."""

    def __init__(self, made: Object, make_pod: PodMaker) -> None:
        self.name: str = made["metadata"]["name"]
        self._spec: Object = made["spec"]
        self._make_pod = make_pod
        self.pods: list[Pod] = []
        # Of pods that have been replaced.
        self.replaced: list[Pod] = []
        self.ends: list[End] = []

    @property
    def replicas(self) -> int:
        return int(self._spec["replicas"])

    async def start(self) -> None:
        """All pods at once, until they are available."""
        self.pods = [await self._make(number) for number in range(self.replicas)]
        for each in self.pods:
            await self._until_available(each)

    async def restart(self) -> None:
        """`kubectl rollout restart`."""
        raise NotImplementedError

    async def stop(self) -> None:
        pods, self.pods = self.pods, []
        self.ends += await asyncio.gather(*(each.terminate() for each in pods))
        self.replaced += pods

    async def _make(self, number: int) -> Pod:
        return await self._make_pod(f"{self.name}-{number}", self._spec["template"])

    async def _end(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self.replaced.append(pod)
        self.ends.append(await pod.terminate())

    def _is_available(self, pod: Pod) -> bool:
        return pod.is_available(self._spec.get("minReadySeconds", 0))

    async def _until_available(self, pod: Pod) -> None:
        def is_available() -> bool:
            pod.raise_failure()
            return self._is_available(pod)

        await until(is_available, _PATIENCE_S)


class Deployment(Workload):
    """More pods than replicas by maxSurge, fewer that are available by maxUnavailable."""

    def __init__(self, made: Object, make_pod: PodMaker) -> None:
        super().__init__(made, make_pod)
        self._numbers = itertools.count(self.replicas)

    async def restart(self) -> None:
        limits = self._spec["strategy"]["rollingUpdate"]
        old, new, ends = list(self.pods), list[Pod](), list[asyncio.Task[None]]()
        while old or not all(map(self._is_available, new)):
            while len(new) < self.replicas and len(self.pods) < self.replicas + limits["maxSurge"]:
                new.append(await self._make(next(self._numbers)))
                self.pods.append(new[-1])
            available = sum(map(self._is_available, self.pods))
            if old and available > self.replicas - limits["maxUnavailable"]:
                # Its successor does not wait for its end.
                ends.append(asyncio.create_task(self._end(old.pop(0))))
            for each in new:
                each.raise_failure()
            await asyncio.sleep(_LOOK_S)
        await asyncio.gather(*ends)


class StatefulSet(Workload):
    """Pods that keep their names: each ends before the next of its name begins, the last first."""

    async def restart(self) -> None:
        assert self._spec.get("updateStrategy", {"type": "RollingUpdate"}) == {
            "type": "RollingUpdate"
        }
        for number in reversed(range(self.replicas)):
            (pod,) = (each for each in self.pods if each.name == f"{self.name}-{number}")
            await self._end(pod)
            self.pods.append(await self._make(number))
            await self._until_available(self.pods[-1])


KINDS: Final[dict[str, type[Workload]]] = {"Deployment": Deployment, "StatefulSet": StatefulSet}
