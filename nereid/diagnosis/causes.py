"""Rules: each finds one cause for which a version is slow, with evidence and a remedy.

A rule gets figures and returns a diagnosis, or `None`. Thresholds leave a healthy version alone:
a diagnosis costs its reader more than a small improvement is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nereid.facts.reasons import Statement
from nereid.model_config.padding import PADDING
from nereid.model_config.remedies import remedy_for
from nereid.pb.model_config_pb2 import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.diagnosis.snapshot import Snapshot
    from nereid.facts import document

# Instances that execute for this share of the time have no capacity left for bursts.
_BUSY: Final = 0.7
# A part of the requests' time below this share is not worth a diagnosis.
_NOTABLE: Final = 0.3
# A smaller gain is not worth words.
_MIN_FACTOR: Final = 1.1
_MIN_LOOKUPS: Final = 50
_MAX_HIT_SHARE: Final = 0.02
_MIN_THROTTLED: Final = 0.1
# An event loop or processors that are busy for this share have no capacity left.
_SATURATED: Final = 0.85
_FULL_MEMORY: Final = 0.95
_WASTED_SHARE: Final = 0.4
_MOVING: Final = frozenset({"LOADING", "UNLOADING"})
# A first execution that takes so many times as long as others, and at least so long, is felt.
_FIRST_FACTOR: Final = 10
_MIN_FIRST_US: Final = 50_000
# Smaller sizes that a remedy proposes: these parts of the present ones.
_PARTS: Final = (1, 2, 4, 8)
# A connection that is used so often waits for responses, rather than for its user.
_MIN_CONNECTION_RATE: Final = 50


@dataclass(frozen=True)
class Diagnosis:
    """One cause. code is a stable name; remedy and command are texts to paste.

    share: the part of the requests' time that the remedy may take away, from 0 to 1. gain: what it
    would bring, as far as the figures say; may be empty.
    """

    code: str
    share: float
    evidence: str
    advice: str
    remedy: str = ""
    gain: str = ""
    command: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def advised(self) -> str:
        """Return advice, remedy, gain and command as one text."""
        remedy = f" `{self.remedy}`" if self.remedy else ""
        gain = f", {self.gain}" if self.gain else ""
        command = f"; `{self.command}` measures it" if self.command else ""
        return f"{self.advice}{remedy}{gain}{command}"

    def document(self) -> document.Diagnosis:
        """Return the diagnosis as JSON documents contain it."""
        return {
            "code": self.code,
            "share": round(self.share, 3),
            "evidence": self.evidence,
            "advice": self.advice,
            "remedy": self.remedy,
            "gain": self.gain,
            "command": self.command,
            "figures": self.figures,
            "text": f"{self.evidence}: {self.advised()}",
        }

    def statement(self, version: str) -> Statement:
        """Return the diagnosis as a statement of `nereid explain`."""
        return Statement(
            f"slow-{self.code}",
            f"slow: {self.evidence}",
            advice=self.advised(),
            version=version,
            figures=self.figures,
        )


def diagnose(snapshot: Snapshot) -> list[Diagnosis]:
    """Return all causes, the one that explains most of the time first; empty for a healthy one."""
    found = [each for rule in _RULES if (each := rule(snapshot)) is not None]
    if not found:
        # Nothing in the mesh limits the rate.
        client = _slow_client(snapshot)
        return [] if client is None else [client]
    return sorted(found, key=lambda each: -each.share)


def _unavailable(of: Snapshot) -> Diagnosis | None:
    if of.state != "UNAVAILABLE" or of.reason == "unloaded":
        return None
    advice = remedy_for(of.reason)
    return Diagnosis(
        "unavailable",
        1.0,
        f"it is not served: {of.reason}",
        advice or "find what is wrong with its configuration and files:",
        remedy="" if advice else f"nereid check PATH/{of.model}",
    )


def _lost_executor(of: Snapshot) -> Diagnosis | None:
    is_ensemble = of.config is not None and of.config.batching == "ensemble"
    missing = of.in_memory and not of.instances[1] and not is_ensemble
    if not missing and not of.retries:
        return None
    if missing:
        evidence = "no instance is ready"
        if of.executors is not None:
            before, now = of.executors
            evidence += f", {now:.0f} executors have joined"
            if before > now:
                evidence += f", {before:.0f} before"
        if of.pending:
            evidence += f", and {of.pending:.0f} requests wait"
    else:
        evidence = (
            f"an instance was lost in these {of.seconds:.0f} s, and {of.retries:.0f} requests ran"
            " again"
        )
    return Diagnosis(
        "executor-lost",
        1.0,
        evidence,
        "start an executor, or find in its log why it ended; instances on two executors survive"
        " the loss of one:",
        remedy="nereid serve --executors 2",
        figures={"instances": of.instances[1], "retries": of.retries},
    )


def _loads_on_demand(of: Snapshot) -> Diagnosis | None:
    if of.on_demand_unloads <= 0 or of.on_demand_loads <= 0:
        return None
    if not (of.loaded or of.unloaded or of.state in _MOVING):
        return None
    return Diagnosis(
        "memory",
        0.95,
        f"models make way for each other: {of.on_demand_loads:.0f} loads and"
        f" {of.on_demand_unloads:.0f} unloads in {of.seconds:.0f} s"
        + (f", and a load of this one takes {of.load_seconds:.1f} s" if of.load_seconds else ""),
        "give the models more memory with the scheduler's --model-memory-budget, start another"
        " executor, or keep this model loaded:",
        remedy='parameters { key: "lazy_loading" value { string_value: "false" } }',
        figures={"loads": of.on_demand_loads, "unloads": of.on_demand_unloads},
    )


def _full_memory(of: Snapshot) -> Diagnosis | None:
    device, used = max(of.memory_used.items(), key=lambda item: item[1], default=("", 0.0))
    if used < _FULL_MEMORY or not of.requests:
        return None
    return Diagnosis(
        "memory",
        0.0,
        f"{used:.0%} of the memory of {device} is used",
        "unload models, give them fewer instances, or limit them:",
        remedy="--lazy-loading --model-memory-budget=SIZE",
        figures={"device": device, "used": used},
    )


def _large_texts(of: Snapshot) -> Diagnosis | None:
    share = of.share(of.large_text_us)
    if share < _NOTABLE:
        return None
    text_us = of.large_text_us / max(1.0, of.requests)
    return Diagnosis(
        "large-json",
        share,
        f"{share:.0%} of a request's {_ms(of.mean_request_us)} is decoding and encoding of large"
        f" JSON or typed contents ({_ms(text_us)})",
        "send and request tensors as binary data:",
        remedy="infer_input.set_data_from_numpy(array, binary_data=True)",
        gain=_times(1 / max(0.05, 1 - share), "at most"),
        command=f"nereid perf -m {of.model} --input-tensor-format binary",
        figures={"large_text_us": text_us, "request_us": of.mean_request_us},
    )


def _throttled(of: Snapshot) -> Diagnosis | None:
    share = of.throttled * of.share(of.queue_us + of.compute_us)
    if of.throttled < _MIN_THROTTLED or share < _MIN_THROTTLED:
        return None
    return Diagnosis(
        "throttled-cpu",
        share,
        f"a CPU limit stopped its executor in {of.throttled:.0%} of the periods",
        "raise the limit of the executor's container, or remove it (a request without a limit):",
        remedy='resources: { requests: { cpu: "4" } }',
        command=f"nereid perf -m {of.model}",
        figures={"throttled": of.throttled},
    )


def _saturated_scheduler(of: Snapshot) -> Diagnosis | None:
    if of.scheduler_busy < _SATURATED or not of.requests:
        return None
    evidence = f"the scheduler's event loop is busy {of.scheduler_busy:.0%}"
    advice = "run the compiled form, or give gateways and schedulers processes of their own:"
    remedy = "nereid serve --gateways 2 --schedulers 2"
    if of.scheduler_waiting > of.scheduler_busy / 2:
        evidence += f", {of.scheduler_waiting:.0%} of the time with no processor free for it"
        advice = "give the machine fewer processes, or the scheduler processors of its own:"
        remedy = 'resources: { requests: { cpu: "2" } }'
    return Diagnosis(
        "scheduler-saturated",
        1 - of.busy,
        f"{evidence}, its instances {of.busy:.0%}",
        advice,
        remedy=remedy,
        command=f"nereid perf -m {of.model} --concurrency-range 1:64:*2",
        figures={
            "scheduler_busy": of.scheduler_busy,
            "scheduler_waiting": of.scheduler_waiting,
            "busy": of.busy,
        },
    )


def _waits_for_instances(of: Snapshot) -> bool:
    return of.busy >= _BUSY and of.share(of.queue_us) >= _NOTABLE


def _can_batch(of: Snapshot) -> bool:
    config = of.config
    return config is not None and config.batching == "none" and config.proto.max_batch_size > 1


def _unbatched(of: Snapshot) -> Diagnosis | None:
    if of.config is None or not _can_batch(of) or not _waits_for_instances(of):
        return None
    largest = of.config.proto.max_batch_size
    rows = max(1.0, of.mean_rows)
    # Larger batches would not fill: these are the requests that are there.
    factor = min(largest / rows, max(1.0, of.in_flight / max(1.0, of.instances[1])))
    saved = of.share(of.queue_us) * (1 - 1 / factor)
    return Diagnosis(
        "no-batcher",
        saved,
        f"{_instances(of)} busy {of.busy:.0%}, batches of {_number(rows)} of {largest}, no batcher",
        "add",
        remedy="dynamic_batching { }",
        gain=_times(factor, "up to"),
        command=f"nereid analyze -m {of.model}",
        figures=_load_figures(of),
    )


def _few_instances(of: Snapshot) -> Diagnosis | None:
    if _can_batch(of) or not _waits_for_instances(of) or of.throttled >= _MIN_THROTTLED:
        return None
    count = max(1.0, of.instances[1])
    evidence = f"{_instances(of)} busy {of.busy:.0%}, {of.share(of.queue_us):.0%} of a request's"
    evidence += f" {_ms(of.mean_request_us)} is waiting"
    config = of.config
    if config is not None and config.proto.max_batch_size > 1:
        evidence += f", batches of {_number(of.mean_rows)} of {config.proto.max_batch_size}"
    advice = "add an instance"
    if of.cpu_utilization >= _SATURATED:
        evidence += f", and the processors are busy {of.cpu_utilization:.0%}"
        advice += " on another executor, with processors or a GPU of its own"
    return Diagnosis(
        "few-instances",
        of.share(of.queue_us) / (count + 1),
        evidence,
        advice + ":",
        remedy=f"instance_group [{{ count: {count + 1:.0f} }}]",
        gain=_times((count + 1) / count, "up to"),
        command=f"nereid analyze -m {of.model}",
        figures=_load_figures(of),
    )


def _long_delay(of: Snapshot) -> Diagnosis | None:
    closed = sum(of.closed.values())
    delayed = of.closed.get("delay", 0.0)
    if of.config is None or not of.delay_us or not of.requests or delayed < closed / 2:
        return None
    queue_us = of.queue_us / of.requests
    largest = of.config.proto.max_batch_size
    share = of.share(of.queue_us)
    if (
        of.busy >= _BUSY
        or share < _NOTABLE
        or queue_us < of.delay_us / 2
        or of.mean_rows > largest / 2
    ):
        return None
    return Diagnosis(
        "long-delay",
        share,
        f"{delayed / closed:.0%} of the batches waited for max_queue_delay_microseconds"
        f" ({_ms(of.delay_us)}) and had {_number(of.mean_rows)} of {largest} rows, while its"
        f" instances were busy {of.busy:.0%}; waiting is {share:.0%} of a request's time",
        "leave the delay out, or shorten it:",
        remedy="dynamic_batching { }",
        gain=_times(1 / max(0.05, 1 - share), "requests up to", " as fast"),
        command=f"nereid analyze -m {of.model}",
        figures={**_load_figures(of), "delay_us": of.delay_us},
    )


def _no_warm_up(of: Snapshot) -> Diagnosis | None:
    config, first_us = of.config, of.first_execution_us
    others = of.executions_since_load - 1
    if config is None or config.proto.model_warmup or others < 1 or not of.requests:
        return None
    mean_us = max(0.0, of.execution_us_since_load - first_us) / others
    if first_us < max(_MIN_FIRST_US, _FIRST_FACTOR * mean_us):
        return None
    inputs = " ".join(
        f'inputs {{ key: "{each.name}" value {{ data_type: {DataType.Name(each.data_type)}'
        f" dims: [{', '.join(str(max(1, dim)) for dim in each.dims)}] zero_data: true }} }}"
        for each in config.proto.input
    )
    batch = " batch_size: 1" if config.proto.max_batch_size else ""
    return Diagnosis(
        "no-warm-up",
        of.share(first_us) if of.loaded else 0.0,
        f"the first execution took {_ms(first_us)}, others {_ms(mean_us)} on average",
        "have the load do it:",
        remedy=f'model_warmup [{{ name: "first"{batch} {inputs} }}]',
        gain=f"the first request then takes about {_ms(mean_us)} at an instance",
        figures={"first_us": first_us, "mean_us": mean_us},
    )


def _useless_cache(of: Snapshot) -> Diagnosis | None:
    lookups = of.cache_hits + of.cache_misses
    if lookups < _MIN_LOOKUPS or of.cache_hits / lookups > _MAX_HIT_SHARE:
        return None
    cost = of.share(of.cache_miss_us)
    evidence = f"{of.cache_hits:.0f} of {lookups:.0f} lookups found a cached response"
    evidence += f", and lookups and insertions are {cost:.0%} of a request's time"
    advice, remedy = "remove the cache from this model:", "response_cache { enable: false }"
    if of.cache_evictions > 0:
        evidence += f"; {of.cache_evictions:.0f} responses were evicted"
        advice = "make the cache larger, or remove it from this model:"
        remedy = "nereid serve --cache-config=local,size=BYTES"
    return Diagnosis(
        "useless-cache",
        cost,
        evidence,
        advice,
        remedy=remedy,
        command=f"nereid perf -m {of.model}",
        figures={"hits": of.cache_hits, "lookups": lookups, "evictions": of.cache_evictions},
    )


def _padding_waste(of: Snapshot) -> Diagnosis | None:
    if not of.input_elements or not of.requests:
        return None
    wasted = of.padding_elements / of.input_elements
    waits_us = of.queue_us if of.busy >= _BUSY else 0.0
    share = wasted * of.share(of.compute_us + waits_us)
    if wasted < _WASTED_SHARE or share < _NOTABLE / 2:
        return None
    return Diagnosis(
        "padding-waste",
        share,
        f"{wasted:.0%} of the elements that it computes are padding",
        "add smaller sizes to the parameter padding, near those of the requests:",
        remedy=_with_smaller_sizes(of),
        gain=_times(1 / max(0.05, 1 - wasted), "executions up to", " as fast"),
        command=f"nereid perf -m {of.model}",
        figures={"padding": wasted},
    )


def _with_smaller_sizes(of: Snapshot) -> str:
    if of.config is None or PADDING not in of.config.proto.parameters:
        return ""
    dimensions = []
    for text in of.config.proto.parameters[PADDING].string_value.split(";"):
        tensors, _, given = text.rpartition(":")
        sizes = {int(size) // part for size in given.replace(",", " ").split() for part in _PARTS}
        dimensions.append(f"{tensors}: {' '.join(map(str, sorted(sizes - {0})))}")
    return f'parameters {{ key: "padding" value {{ string_value: "{"; ".join(dimensions)}" }} }}'


def _slow_client(of: Snapshot) -> Diagnosis | None:
    if not of.connections or not of.request_us or not of.seconds:
        return None
    rate = of.requests / of.seconds
    per_connection = rate / of.connections
    # The rest is the network, the gateway, and the client itself.
    server_share = of.in_flight / of.connections
    if per_connection < _MIN_CONNECTION_RATE or server_share > 1 / 2 or of.busy > 1 / 2:
        return None
    return Diagnosis(
        "slow-client",
        0.0,
        f"its clients have {of.in_flight:.1f} requests in flight on {of.connections:.0f}"
        f" connections, and its instances are busy {of.busy:.0%}: the mesh waits for the clients",
        "have more requests in flight, with asynchronous calls or more client processes; the"
        " highest rate is what a load generator reaches:",
        remedy=f"nereid perf -m {of.model} --concurrency-range 1:64:*2",
        figures={**_load_figures(of), "connections": of.connections},
    )


_RULES: Final[tuple[Callable[[Snapshot], Diagnosis | None], ...]] = (
    _unavailable,
    _lost_executor,
    _loads_on_demand,
    _saturated_scheduler,
    _throttled,
    _large_texts,
    _unbatched,
    _padding_waste,
    _few_instances,
    _long_delay,
    _useless_cache,
    _no_warm_up,
    _full_memory,
)


def _load_figures(of: Snapshot) -> dict[str, Any]:
    return {
        "busy": of.busy,
        "instances": of.instances[1],
        "mean_rows": of.mean_rows,
        "in_flight": of.in_flight,
        "queue_share": of.share(of.queue_us),
    }


def _instances(of: Snapshot) -> str:
    count = of.instances[1]
    return "its only instance is" if count <= 1 else f"its {count:.0f} instances are"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _times(factor: float, how: str, of_what: str = "") -> str:
    return f"{how} x{_number(factor)}{of_what}" if factor >= _MIN_FACTOR else ""


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms"
