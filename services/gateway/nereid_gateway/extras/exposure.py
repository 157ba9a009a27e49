"""Summary of what a gateway's ports serve and to whom, for a log line at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_gateway.core.routes import ENDPOINTS, SAGEMAKER, VERTEX_AI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_gateway.settings import GatewaySettings

# Key: an API. Value: its text in the line. APIs without a text are harmless.
_TEXTS: Final = {
    "inference": "inference",
    "metadata": "metadata",
    "statistics": "statistics",
    "model-repository": "model control",
    "trace": "trace settings",
    "logging": "log settings",
    "shared-memory": "shared memory",
    "console": "the console",
}


def exposure(settings: GatewaySettings, addresses: Mapping[str, str | None]) -> str:
    """Return what each port serves, and to whom.

    addresses: the address of "http", "grpc", "metrics" and each managed port. A port without an
    address is not served.
    """
    ports: dict[tuple[str, str], list[str]] = {}
    for protocol in ("http", "grpc"):
        if address := addresses[protocol]:
            what = ", ".join(_open_apis(settings, protocol)) or "nothing"
            ports.setdefault((_clients(settings, protocol), what), []).append(address)
    for platform in (SAGEMAKER, VERTEX_AI):
        if address := addresses.get(platform):
            what = ", ".join(_platform_apis(settings, platform)) or "nothing"
            ports.setdefault(("any client", what), []).append(address)
    parts = [f"to {who} of {' and '.join(at)}: {what}" for (who, what), at in ports.items()]
    if settings.auth_config:
        parts.append("to clients with credentials: what --auth-config permits them")
    if metrics := addresses["metrics"]:
        parts.append(f"to any client of {metrics}: metrics")
    return "; ".join(parts)


def _open_apis(settings: GatewaySettings, protocol: str) -> list[str]:
    guarded = settings.restricted_apis(protocol) | settings.closed_apis(protocol)
    guarded |= settings.apis_with_credentials()
    if not settings.allow_client_shm:
        guarded |= {"shared-memory"}
    if not (settings.console and protocol == "http"):
        guarded |= {"console"}
    return [text for name, text in _TEXTS.items() if name not in guarded]


def _platform_apis(settings: GatewaySettings, platform: str) -> list[str]:
    served = {_TEXTS.get(endpoint.api) for endpoint in ENDPOINTS if platform in endpoint.ports}
    if platform == SAGEMAKER and not settings.sagemaker_multi_model:
        served.discard(_TEXTS["model-repository"])
    return [text for text in _open_apis(settings, "http") if text in served]


def _clients(settings: GatewaySettings, protocol: str) -> str:
    if getattr(settings, f"{protocol}_use_ssl_mutual"):
        return f"clients with a certificate of --{protocol}-root-cert"
    return "any client"
