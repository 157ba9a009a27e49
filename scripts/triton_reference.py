"""Write docs/reference/triton.md: what there is of each name in Triton's newest sources.

Exits with 1 if a name is neither declared here nor has a remark, or a remark is for no name. The
names are in tests/conformance/triton_surface.json, which scripts/triton_surface.py writes. With
--check: exit with 1 if the page differs.

usage: triton_reference.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from nereid.config.flags import declared_flags
from nereid.observability.metrics import declared_families
from nereid.pb import kserve_pb2, model_config_pb2
from nereid_cache.settings import CacheSettings
from nereid_executor.settings import ExecutorSettings
from nereid_gateway.core.routes import ENDPOINTS
from nereid_gateway.settings import GatewaySettings
from nereid_mesh.check.parameters import KNOWN_PARAMETERS
from nereid_mesh.serve.settings import ServeSettings
from nereid_mesh.serve.triton_flags import TritonFlags
from nereid_scheduler.settings import Settings as SchedulerSettings
from scripts.reference_page import ROOT, table, write_or_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.descriptor import Descriptor, EnumDescriptor

SURFACE = ROOT / "tests" / "conformance" / "triton_surface.json"

_SETTINGS = (
    ServeSettings,
    TritonFlags,
    GatewaySettings,
    SchedulerSettings,
    ExecutorSettings,
    CacheSettings,
)
_NO_EFFECT = ("accepted and ignored", "Triton's; changes nothing here")
_ACCEPTED = "accepted, no effect"
_BY_MODEL = "[the model's own files](../model-authors/text-models.md) say it"
_SAGEMAKER = "the port of [SageMaker](../operators/managed-endpoints.md)"
_TENSORRT = "a parameter of the accelerator `tensorrt`"
_CUDA = "a parameter of the accelerator `cuda` as well"
_BACKEND_CONFIG = "`--backend-config`, as in Triton"
_MODEL_PY = 'not here, as is `runtime: "model.py"`: the backend `python` serves modules'
_SHARED_MEMORY = f"{_ACCEPTED}: `--shm-limit-bytes` and `--shm-idle-secs` bound shared memory"
_INTRODUCTION = """\
# Triton's names

<!-- Written by scripts/triton_reference.py from tests/conformance/triton_surface.json. -->

What there is here of each name in the sources of Triton {version}, the newest when this page was
made. Names without a remark mean the same as in Triton. How responses differ is on the page of
[differences](../compatibility.md).
"""


class Section(NamedTuple):
    """Names of one kind. A remark is for the name that is its key, or for `beginning*`."""

    title: str
    names: list[str]
    declared: frozenset[str]
    remarks: Mapping[str, str]


def sections(surface: Mapping[str, object]) -> Iterator[Section]:
    """Yield the sections of the page from the names in Triton's sources."""
    flags, ignored = _flags()
    yield Section(
        "Options of the command line",
        _names(surface["flags"]),
        flags,
        dict.fromkeys(ignored, _ACCEPTED)
        | {
            "allow-client-shm": "the default is `false` in both since 2.69; on Triton 2.51 clients "
            "may register shared memory",
            "help": "lists flags by topic",
        },
    )
    yield Section(
        "Routes of HTTP",
        _names(surface["routes"]),
        frozenset(_routes()),
        {
            "/invocations": _SAGEMAKER,
            "/metrics": "the port of metrics",
            "/models*": f"{_SAGEMAKER}, in multi-model mode",
            "/ping": _SAGEMAKER,
            "/v2/models/{}/versions/{}/trace/setting": "refused, as in Triton",
        },
    )
    yield Section(
        "Options of the OpenAI front end",
        _names(surface["openai_flags"]),
        flags,
        {
            "backend": _BY_MODEL,
            "chat-template": _BY_MODEL,
            "default-max-tokens": _BY_MODEL,
            "enable-kserve-frontends": "`--openai-api`: both are at the HTTP port",
            "host": "`--http-address`",
            "http-max-input-size": "for KServe v2 as well",
            "kserve-grpc-port": "`--grpc-port`",
            "kserve-http-port": "`--http-port`",
            "lora-separator": "not here: a model is served under one name",
            "max-tool-call-parse-bytes": "not here: calls are read once, and are "
            "of at most 1,048,576 characters",
            "openai-port": "`--http-port`",
            "openai-restricted-api": "`--http-restricted-api`, `--auth-config`",
            "tokenizer": _BY_MODEL,
            "tool-call-parser": _BY_MODEL,
            "tritonserver-log-verbose-level": "`--log-verbose`",
            "uvicorn-log-level": "`--log-verbose`, `--log-info` and the like",
        },
    )
    yield Section(
        "Routes of the OpenAI front end",
        _names(surface["openai_routes"]),
        frozenset(_routes()),
        {
            "/health/ready": "`/v2/health/ready`",
            "/metrics": "the port of metrics",
        },
    )
    yield Section(
        "Methods of gRPC",
        _names(surface["methods"]),
        frozenset(
            f"{service.name}.{method.name}"
            for service in kserve_pb2.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        ),
        {"Health.Check": "with `Watch`, and NOT_FOUND for unknown services"},
    )
    yield Section(
        "Metrics",
        _names(surface["metrics"]),
        frozenset(family.name for family in declared_families()),
        {},
    )
    yield Section(
        "Fields of `config.pbtxt`",
        _names(surface["fields"]),
        frozenset(_fields()),
        {
            "ModelEnsembling.max_inflight_requests": "requests that models make do not wait",
            "ModelInstanceGroup.host_policy": _ACCEPTED,
            "ModelInstanceGroup.secondary_devices": _ACCEPTED,
            "ModelInstanceGroup.SecondaryDevice.*": _ACCEPTED,
            "ModelOptimizationPolicy.gather_kernel_buffer_threshold": _ACCEPTED,
            "ModelSequenceBatching.State.use_growable_memory": _ACCEPTED,
            "ModelSequenceBatching.State.use_same_buffer_for_input_output": _ACCEPTED,
        },
    )
    remarks = {
        "onnxruntime": {
            "arena_extend_strategy": _CUDA,
            "cudnn_conv_algo_search": _CUDA,
            "default-max-batch-size": _BACKEND_CONFIG,
            "do_copy_in_default_stream": _CUDA,
            "gpu_mem_limit": _CUDA,
            "int8_*": _TENSORRT,
            "max_workspace_size_bytes": _TENSORRT,
            "precision_mode": f"{_TENSORRT}; `BF16` as well",
            "session.use_device_allocator_for_initializers": "any `session.*` is passed on",
            "trt_*": _TENSORRT,
            "use_ep_level_unified_stream": "a parameter of the accelerator `cuda`",
        },
        "python": {
            "backend-directory": "`--backend-directory`",
            "shm*": _SHARED_MEMORY,
            "stub-timeout-seconds": "a parameter of the model as well",
            "thread-pool-size": f"{_ACCEPTED}: a model's own requests take no thread",
        },
        "openvino": {
            "ENABLE_BATCH_PADDING": f"{_ACCEPTED}: batches of any size run without padding",
            "default-max-batch-size": _BACKEND_CONFIG,
        },
        "pytorch": {
            "INTER_OP_THREAD_COUNT": "for all models of the process, as in Triton",
            "NUM_*": _MODEL_PY,
            "TORCH_COMPILE_OPTIONAL_PARAMETERS": _MODEL_PY,
        },
        "tensorrt": {
            "coalesce-request-input": _ACCEPTED,
            "enable_multi_device": "refused: an engine runs on one GPU",
            "execution-policy": _ACCEPTED,
            "multi_device_*": "no effect, as `enable_multi_device` is refused",
            "plugins": _BACKEND_CONFIG,
            "version-compatible": _BACKEND_CONFIG,
        },
    }
    parameters = surface["parameters"]
    assert isinstance(parameters, dict)
    for backend, names in parameters.items():
        known = frozenset(KNOWN_PARAMETERS.get(backend, ()))
        title = f"Parameters of the backend `{backend}`"
        yield Section(title, _names(names), known, remarks.get(backend, {}))


def unexplained_names(section: Section) -> list[str]:
    """Return a line for each name without a remark or declaration, and each remark for no name."""
    unused = [key for key in section.remarks if not any(_matches(key, n) for n in section.names)]
    return [
        *(
            f"{section.title}: '{name}' is not declared here and has no remark"
            for name in section.names
            if name not in section.declared and _remark(section, name) is None
        ),
        *(f"{section.title}: the remark on '{key}' is for no name" for key in unused),
    ]


def page(surface: Mapping[str, object]) -> str:
    """Return the text of the page; exit if a name has no line."""
    parts = [_INTRODUCTION.format(version=surface["version"])]
    found: list[str] = []
    for section in sections(surface):
        found += unexplained_names(section)
        same = [name for name in section.names if not _remark(section, name)]
        other = [(f"`{name}`", text) for name in section.names if (text := _remark(section, name))]
        parts.append(f"\n## {section.title}\n\n")
        if same:
            parts.append(f"As in Triton: {', '.join(map(_grouped, _groups(same)))}.\n\n")
        if other:
            parts.append(table(("Name", "Here"), other))
    if found:
        sys.exit("\n".join(found))
    return "".join(parts).replace("\n\n\n", "\n\n").rstrip("\n") + "\n"


def _groups(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group names of the form Message.field by the message."""
    groups: dict[str, list[str]] = {}
    for name in names:
        outer, dot, last = name.rpartition(".")
        is_field = dot and outer[0].isupper()
        groups.setdefault(outer if is_field else "", []).append(last if is_field else name)
    return list(groups.items())


def _grouped(group: tuple[str, list[str]]) -> str:
    outer, names = group
    listed = ", ".join(f"`{name}`" for name in names)
    return f"`{outer}` ({listed})" if outer else listed


def _remark(section: Section, name: str) -> str | None:
    for key, text in section.remarks.items():
        if _matches(key, name):
            return text
    return None


def _matches(key: str, name: str) -> bool:
    return name.startswith(key[:-1]) if key.endswith("*") else name == key


def _names(names: object) -> list[str]:
    assert isinstance(names, list)
    return names


def _flags() -> tuple[frozenset[str], list[str]]:
    """Return the names of all flags, and of those without an effect."""
    names, ignored = set(), []
    for flag in declared_flags(*_SETTINGS):
        option = flag.option
        names |= {flag.name, *option.aliases, *option.deprecated}
        if option.help in _NO_EFFECT:
            ignored.append(flag.name.removeprefix("--"))
    return frozenset(name.removeprefix("--") for name in names), ignored


def _routes() -> Iterator[str]:
    """Yield every path that the gateway serves, {} for each name in it."""
    for endpoint in ENDPOINTS:
        for template in endpoint.templates:
            for kind in ("system", "cuda"):
                yield from _expanded(template.replace("{memory_kind}", kind))


def _expanded(template: str) -> Iterator[str]:
    before, bracket, after = template.partition("[")
    if not bracket:
        yield re.sub(r"{\w+}", "{}", template)
        return
    optional, _, rest = after.partition("]")
    yield from _expanded(f"{before}{rest}")
    yield from _expanded(f"{before}{optional}{rest}")


def _fields() -> Iterator[str]:
    descriptor = model_config_pb2.DESCRIPTOR
    for enum in descriptor.enum_types_by_name.values():
        yield from _values("", enum)
    for message in descriptor.message_types_by_name.values():
        yield from _message_fields("", message)


def _message_fields(outer: str, message: Descriptor) -> Iterator[str]:
    name = f"{outer}{message.name}."
    for field in message.fields:
        yield f"{name}{field.name}"
    for enum in message.enum_types:
        yield from _values(name, enum)
    for nested in message.nested_types:
        yield from _message_fields(name, nested)


def _values(outer: str, enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{outer}{enum.name}.{value.name}"


if __name__ == "__main__":
    text = page(json.loads(SURFACE.read_text()))
    sys.exit(write_or_check("triton.md", text, "The reference page of Triton's names"))
