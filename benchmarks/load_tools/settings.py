"""The load settings that both tools measure.

The module holds no state and does no I/O.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """A closed loop; streaming: requests are sent over ModelStreamInfer."""

    name: str
    protocol: str
    in_flight: int
    streaming: bool = False
    has_sequences: bool = False
    shared_memory: bool = False


SETTINGS = (
    Setting("http-1", "http", 1),
    Setting("http-16", "http", 16),
    Setting("grpc-1", "grpc", 1),
    Setting("grpc-16", "grpc", 16),
    Setting("grpc-64", "grpc", 64),
    Setting("stream-16", "grpc", 16, streaming=True),
    Setting("sequences-16", "grpc", 16, streaming=True, has_sequences=True),
    Setting("shared-memory-16", "grpc", 16, shared_memory=True),
)


@dataclass(frozen=True)
class Target:
    """Running server.

    model, sequence_model: models for requests without and with sequences. is_json: the server takes
    no binary tensors over HTTP. shape: shape of the input, if the server's metadata lacks it.
    """

    name: str
    http: str
    grpc: str
    model: str
    sequence_model: str
    is_json: bool = False
    shape: str = ""


def flags(setting: Setting, target: Target, window_s: float) -> list[str]:
    """Return flags for both tools. They ask for three windows, even if these differ widely."""
    given = [
        *("-m", target.sequence_model if setting.has_sequences else target.model),
        *("-i", setting.protocol),
        *("-u", target.http if setting.protocol == "http" else target.grpc),
        *("--concurrency-range", str(setting.in_flight)),
        *("-p", str(round(window_s * 1000))),
        *("-s", "1000000", "-r", "10"),
    ]
    if setting.streaming:
        given.append("--streaming")
    if setting.has_sequences:
        given += ["--sequence-length", "20"]
    if setting.shared_memory:
        given.append("--shared-memory=system")
    if target.is_json and setting.protocol == "http":
        given += ["--input-tensor-format", "json", "--output-tensor-format", "json"]
    return given
