"""Entry point ``python -m benchmarks.sequences``: the scheduler's cost of live sequences.

The benchmark runs in one process, without sockets. The scheduler gets frames with a gateway's
requests and returns frames with responses. The instances of the model version respond at once. The
benchmark reports the memory per live sequence. It also compares the CPU time per request with that
of the same model without sequences, in turns.
"""

import argparse
import asyncio
import gc
import os
import statistics
import time
from pathlib import Path

from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import FromScheduler, InferRequest, ToScheduler
from nereid.model_config import complete_config, freeze_config, parse_config
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.version_context import VersionContext

BURST = 64
CONFIG = """
backend: "onnxruntime"
max_batch_size: 64
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 %s }"
OLDEST = "oldest { max_candidate_sequences: %d }"
STATE = 'state { input_name: "S" output_name: "S_OUT" data_type: TYPE_FP32 dims: 8 }'


class RespondingStream:
    """Stream of an instance that keeps the last batch."""

    def __init__(self) -> None:
        self.message = b""

    def send(self, message: bytes, at_once: bool = False) -> None:  # noqa: ARG002 (as Link)
        """Keep the batch."""
        self.message = message

    def finish(self) -> None:
        """Do nothing: no batch is lost."""

    def fail(self, status: Status, message: str) -> None:
        """Do nothing: nothing is open."""


class Site:
    """A model version with instances, and requests to it."""

    def __init__(self, batching: str, instances: int) -> None:
        written = parse_config(f'name: "m" {CONFIG} {batching}', model_name="m")
        config = freeze_config(complete_config(written, model_name="m", description=None))
        self.version = ModelVersion(config, 1, VersionContext())
        self.instances = []
        for number in range(instances):
            stream = RespondingStream()
            instance = RemoteInstance(number, f"m_{number}", "executor", stream)
            self.version.pool.roster.add(instance)
            self.instances.append((instance, stream))
        head = kserve_pb2.ModelInferRequest(model_name="m")
        head.inputs.add(name="I", datatype="UINT8", shape=[1, 1])
        self._head = head.SerializeToString()
        response = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
        response.outputs.add(name="O", datatype="UINT8", shape=[1, 1])
        self._response = pb.InferResponse(head=response.SerializeToString())
        self._response.payloads.add(inline=b"x")
        self._number = 0
        self._responses: list[FromScheduler] = []
        # CPU seconds of the scheduler's part alone.
        self.cpu_s = 0.0

    async def burst(self, sequences: range, *, start: bool = False) -> None:
        """Send a request in each of these sequences, and respond."""
        requests: list[ToScheduler] = []
        for which in sequences:
            self._number += 1
            parameters = {"sequence_id": which + 1, "sequence_start": start}
            request = InferRequest(self._number, self._head, [b"x"], parameters=dict(parameters))
            requests.append(request)
        frame = RequestCodec().encode(requests)
        del requests
        submit, respond = self.version.submit, self._responses.append
        started = time.process_time()
        for item in RequestCodec().decode(frame):
            assert isinstance(item, InferRequest)
            submit(item, respond)
        self.cpu_s += time.process_time() - started
        while len(self._responses) < len(sequences):
            started = time.process_time()
            await asyncio.sleep(0)
            self.cpu_s += time.process_time() - started
            for instance, stream in self.instances:
                message, stream.message = stream.message, b""
                if message:
                    executed = self._executed(pb.Batch.FromString(message))
                    started = time.process_time()
                    self.version.pool.on_reply(instance, executed)
                    self.cpu_s += time.process_time() - started
        started = time.process_time()
        ResponseCodec().encode(self._responses)
        self._responses.clear()
        self.cpu_s += time.process_time() - started

    def _executed(self, batch: pb.Batch) -> bytes:
        executed = pb.Executed(id=batch.id, responses=[self._response] * len(batch.members))
        for member in batch.members:
            if member.returns_state:
                executed.states.add(slot=member.sequence_slot, state=bytes(64))
        return executed.SerializeToString()


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def begin(site: Site, live: int) -> None:
    """Begin this many sequences, and leave them idle."""
    for first in range(0, live, BURST):
        await site.burst(range(first, min(first + BURST, live)), start=True)
    gc.collect()


async def cpu_us(site: Site, live: int, bursts: int) -> float:
    """Return the CPU time per request, for bursts of requests over all live sequences."""
    before_s = site.cpu_s
    for number in range(bursts):
        first = number * 7919 * BURST % max(1, live - BURST)
        await site.burst(range(first, first + BURST))
    return (site.cpu_s - before_s) * 1e6 / (bursts * BURST)


async def compare(name: str, batching: str, instances: int, arguments: argparse.Namespace) -> None:
    """Print a line that compares the model with sequences to the model without."""
    live = arguments.live
    plain = Site("dynamic_batching { }", 1)
    gc.collect()
    before = resident_bytes()
    site = Site(batching, instances)
    await begin(site, live)
    site_bytes = (resident_bytes() - before) / live
    gc.freeze()
    costs = [
        (
            await cpu_us(plain, live, arguments.bursts),
            await cpu_us(site, live, arguments.bursts),
        )
        for _ in range(arguments.rounds)
    ]
    # The first quartile is of rounds that other work on the machine has disturbed least.
    base, cost = (statistics.quantiles(figures)[0] for figures in zip(*costs, strict=True))
    print(
        f"{name:20} {live:7} live  {site_bytes:6.0f} bytes each  {cost:6.1f} us per request,"
        f" {base:6.1f} without sequences: {cost / base:.2f} x",
        flush=True,
    )
    site.version.close()
    plain.version.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sequences")
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--bursts", type=int, default=40, help=f"of {BURST} requests")
    arguments = parser.parse_args()
    oldest = OLDEST % arguments.live
    snapshots = 'parameters { key: "sequence_snapshot_interval" value { string_value: "%d" } }'
    for name, batching, instances in (
        ("oldest", SEQUENCES % oldest, 1),
        ("oldest, state", SEQUENCES % (oldest + STATE), 1),
        ("oldest, 16 kept", SEQUENCES % (oldest + STATE) + snapshots % 16, 1),
    ):
        asyncio.run(compare(name, batching, instances, arguments))


if __name__ == "__main__":
    main()
