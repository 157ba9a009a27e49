"""A model version whose cache and whose instance respond when the test says so."""

import asyncio
from typing import Any

from nereid.core.tensors.digest import DIGEST_BYTES
from nereid.core.wire.messages import InferRequest, InferResponse, Payload
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.tracing.spans import SpanTraces
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.scheduler.samples import head_of, model_of
from tests.support.scheduler.world import Stream

CONFIG = """
max_batch_size: 64
response_cache { enable: true }
dynamic_batching { }
input { name: "I" data_type: TYPE_UINT8 dims: -1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
ORDERED = CONFIG.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }")
LIMIT_S = 20
REVISION = b"r" * 16


class CachedModel:
    """One instance of REVISION; its batches wait for execute()."""

    def __init__(
        self,
        *,
        max_queue_size: int = 0,
        timeout_s: float = LIMIT_S,
        config: str = CONFIG,
        max_unsent_bytes: int = 1 << 30,
    ) -> None:
        self.link = FakeLink()
        self.tracer = RecordedSpans()
        limits = QueueLimits(max_queue_size=max_queue_size)
        self.client = CacheClient(self.link, SECRETS, timeout_s, max_unsent_bytes)
        context = VersionContext(limits, SpanTraces(self.tracer), self.client)
        self.model = ModelVersion(model_of(config), 1, context)
        self.model.set_revision(REVISION)
        assert self.model.cache is not None, "its configuration enables it"
        self.cache = self.model.cache
        self.stream = Stream()
        self.instance = RemoteInstance(1, "i", "executor", self.stream, revision=REVISION)
        self.model.pool.roster.add(self.instance)
        self.responses: dict[int, InferResponse] = {}
        self._executed = 0

    def submit(
        self,
        number: int,
        digest: bytes = b"d" * DIGEST_BYTES,
        deadline: float | None = None,
        priority: int = 0,
        trace_context: bytes = b"",
        caller: int = 0,
    ) -> Entry:
        head = head_of([("I", "UINT8", [1, 1])])
        request = InferRequest(
            number, head, [digest[:1] or b"x"], digest=digest, deadline=deadline, priority=priority
        )
        request.trace_context = trace_context
        request.caller = caller
        return self.model.submit(request, self.keep_response)

    def submit_large(self, number: int, payload: Payload, **fields: Any) -> Entry:
        size = payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)
        head = head_of([("I", "UINT8", [1, size])])
        return self.model.submit(
            InferRequest(number, head, [payload], **fields), self.keep_response
        )

    def keep_response(self, response: InferResponse) -> None:
        assert response.id not in self.responses
        self.responses[response.id] = response

    async def execute(self, error: str = "") -> int:
        """Respond to the batch that is executing; how many requests it had."""
        await turn()
        batch = self.stream.sent[self._executed]
        self._executed += 1
        reply = pb.Executed(id=batch.id)
        for member in batch.members:
            response = reply.responses.add()
            if error:
                response.error.code = 13
                response.error.message = error
            else:
                response.head = b"head"
                response.payloads.append(member.payloads[0])
        self.model.pool.on_reply(self.instance, reply.SerializeToString())
        await turn()
        return len(batch.members)

    def texts(self) -> dict[int, str]:
        return {n: each.error.message if each.error else "" for n, each in self.responses.items()}

    def counts(self) -> tuple[int, int, int, int, int]:
        """Executions, inferences, successes, hits, misses."""
        stats = self.model.statistics
        return (
            stats.execution_count,
            stats.inference_count,
            stats.success.count,
            stats.cache_hit.count,
            stats.cache_miss.count,
        )

    async def end(self) -> None:
        await asyncio.wait_for(self.model.idle(), LIMIT_S)
        assert len(self.cache._flights) == 0
        assert self.cache._waiting == 0
        self.client.close()
        self.model.close()


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
