"""Flags of perf_analyzer that `nereid perf` accepts for scripts; most of them change nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nereid.config.flags import Topic, choice, flag, flag_name

if TYPE_CHECKING:
    from nereid.config.flags import Parse

_IGNORED: Final = "perf_analyzer's; changes nothing here"
_TRACE_FIELDS: Final = ("trace_level", "trace_rate", "trace_count", "log_frequency")


def _ignored(*aliases: str, bare: str | None = None) -> Any:
    return flag(None, _IGNORED, aliases=aliases, bare=bare)


def _only(name: str, reason: str) -> Parse:
    def parse(text: str) -> str:
        if text.lower() != name.lower():
            raise ValueError(f"expected {name}: {reason}")
        return name

    return parse


def _refused(help_text: str, reason: str, bare: str | None = None) -> Any:
    def parse(_text: str) -> str:
        raise ValueError(reason)

    return flag("", f"perf_analyzer's: {help_text}; {reason}", parse, bare=bare)


_PEM: Final = _only("PEM", "files of no other form are read")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerfAnalyzerFlags:
    """Values of perf_analyzer's flags; `None` for a flag that is not given."""

    TOPIC: ClassVar = Topic.PERF_ANALYZER

    ssl_https_client_certificate_type: str = flag("PEM", "of the certificate: PEM", _PEM)
    ssl_https_private_key_type: str = flag("PEM", "of the key: PEM", _PEM)
    trace_level: tuple[str, ...] = flag(
        (), "the server's trace setting before the run: OFF, TIMESTAMPS or TENSORS",
        choice("OFF", "TIMESTAMPS", "TENSORS"), repeated=True,
    )  # fmt: skip
    trace_rate: str = flag("", "the server's trace setting: one request in so many is traced")
    trace_count: str = flag("", "the server's trace setting: so many traces at most, -1: all")
    log_frequency: str = flag("", "the server's trace setting: so many traces in a file, 0: all")
    session_concurrency: str = _refused(
        "chats at a time", "chats of an OpenAI server are not measured"
    )
    fixed_schedule: str = _refused(
        "requests at the times of the input data",
        "--replay sends requests at the times of a file", bare="true",
    )  # fmt: skip
    grpc_method: str = _refused("a gRPC method", "other gRPC services are not measured")
    proto: str = _refused("its .proto file", "other gRPC services are not measured")
    zero_input: str | None = flag(
        None, "older form of --input-data zero", aliases=("-z",), bare="true"
    )
    dynamic_concurrency: str | None = _ignored("-d", bare="true")
    model_signature_name: str | None = _ignored()
    max_threads: str | None = _ignored()
    serial_sequences: str | None = _ignored(bare="true")
    ssl_https_verify_peer: str | None = _ignored()
    ssl_https_verify_host: str | None = _ignored()
    profile_export_file: str | None = _ignored()
    triton_server_directory: str | None = _ignored()
    model_repository: str | None = _ignored()
    enable_mpi: str | None = _ignored(bare="true")

    def without_effect(self) -> list[str]:
        """Return the names of the given flags that change nothing."""
        return [
            flag_name(field)
            for field in dataclasses.fields(self)
            if field.metadata["flag"].help == _IGNORED and getattr(self, field.name) is not None
        ]

    @property
    def trace_settings(self) -> dict[str, Any]:
        """Trace settings to give to the server; empty if no flag is given."""
        given = {name: getattr(self, name) for name in _TRACE_FIELDS}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value
        }
