"""Table of the endpoints of all HTTP ports, and a function that finds a target's endpoint.

As on Triton, a version consists of digits, and a name may contain anything but a slash.
"""

# layout: compiled

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from nereid.timeline import PATH as TIMELINE_PATH

# Ports that serve routes. A managed port translates its own routes to the routes in this table.
HTTP: Final = "http"
SAGEMAKER: Final = "sagemaker"
VERTEX_AI: Final = "vertex-ai"
METRICS: Final = "metrics"


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Endpoint of the HTTP ports: its routes, its methods, its group of APIs and its handler."""

    # The guards read this table and cannot import handlers, so this is text.
    handler: str
    # `{name}` is a field of Route. The part in brackets is optional.
    templates: tuple[str, ...]
    methods: tuple[bytes, ...]
    # Routes without a group are open to everybody, because they reveal nothing about the server.
    api: str
    ports: tuple[str, ...]
    # The route changes the server or shows what other clients do. So --open-control-apis applies,
    # and pages of other origins cannot use it. Everybody may read the index and the status of
    # shared memory.
    is_control: bool = False
    # The handler runs at once. Other calls wait for their client's turn.
    at_once: bool = False
    # The route reports readiness. Such calls have a queue of their own.
    is_probe: bool = False
    # A call that has begun is completed even if its client disconnects.
    survives_disconnect: bool = False
    # As on Triton, a 405 is plain text here. For other routes, it is JSON.
    refuses_in_text: bool = False
    # The body names the model, so its handler checks the client's right to use the model.
    model_in_body: bool = False


class Route(NamedTuple):
    """Endpoint of a target, and the names in the target. A name that the target lacks is empty."""

    endpoint: Endpoint
    model: str = ""
    version: str = ""
    repository: str = ""
    memory_kind: str = ""
    region: str = ""
    # Name of a file of the console's page.
    file: str = ""
    executor: str = ""


_GET: Final = (b"GET",)
_POST: Final = (b"POST",)
_DELETE: Final = (b"DELETE",)
_MANAGED: Final = (HTTP, SAGEMAKER, VERTEX_AI)
_REDIRECTED: Final = (HTTP, VERTEX_AI)
_OWN: Final = (HTTP,)

NOT_FOUND: Final = Endpoint("", (), (), "", ())


def _text_endpoint(handler: str, *templates: str) -> Endpoint:
    """Return the endpoint of an API of texts, whose routes below /v1 have an alias each."""
    aliases = tuple(f"/openai{text}" for text in templates if text.startswith("/v"))
    return Endpoint(
        handler, templates + aliases, _POST, "inference", _OWN, at_once=True, model_in_body=True
    )


# The templates are tried in this order.
ENDPOINTS: Final = (
    Endpoint(
        "InferEndpoint.handle",
        ("/v2/models/{model}[/versions/{version}]/infer",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "GenerateEndpoint.handle",
        ("/v2/models/{model}[/versions/{version}]/generate",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
    ),
    Endpoint(
        "GenerateEndpoint.handle_stream",
        ("/v2/models/{model}[/versions/{version}]/generate_stream",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
    ),
    Endpoint("MetadataEndpoints.server_metadata", ("/v2",), _GET, "metadata", _REDIRECTED),
    Endpoint(
        "HealthEndpoints.live",
        ("/v2/health/live",),
        _GET,
        "health",
        (*_MANAGED, METRICS),
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "HealthEndpoints.ready",
        ("/v2/health/ready",),
        _GET,
        "health",
        (*_MANAGED, METRICS),
        is_probe=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "MetadataEndpoints.model_statistics",
        ("/v2/models/stats", "/v2/models/{model}[/versions/{version}]/stats"),
        _GET,
        "statistics",
        _REDIRECTED,
    ),
    Endpoint(
        "MetadataEndpoints.model_metadata",
        ("/v2/models/{model}[/versions/{version}]",),
        _GET,
        "metadata",
        _REDIRECTED,
    ),
    Endpoint(
        "HealthEndpoints.model_ready",
        ("/v2/models/{model}[/versions/{version}]/ready",),
        _GET,
        "health",
        _REDIRECTED,
        is_probe=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "MetadataEndpoints.model_config",
        ("/v2/models/{model}[/versions/{version}]/config",),
        _GET,
        "model-config",
        _REDIRECTED,
    ),
    Endpoint(
        "TraceAndLogEndpoints.trace_setting",
        ("/v2/models/{model}/trace/setting", "/v2/trace/setting"),
        _GET + _POST,
        "trace",
        _OWN,
        is_control=True,
    ),
    Endpoint(
        "TraceAndLogEndpoints.logging",
        ("/v2/logging",),
        _GET + _POST,
        "logging",
        _OWN,
        is_control=True,
    ),
    Endpoint("TimelineEndpoint.timeline", (TIMELINE_PATH,), _GET, "trace", _OWN, is_control=True),
    Endpoint(
        "ExecutorEndpoints.drain",
        ("/v2/nereid/executors/{executor}/drain",),
        _POST,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "RepositoryEndpoints.index",
        ("/v2/repository[/{repository}]/index",),
        _POST,
        "model-repository",
        _MANAGED,
    ),
    Endpoint(
        "RepositoryEndpoints.load",
        ("/v2/repository[/{repository}]/models/{model}/load",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "RepositoryEndpoints.unload",
        ("/v2/repository[/{repository}]/models/{model}/unload",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "TrafficEndpoints.traffic",
        ("/v2/repository/models/{model}/traffic",),
        _GET + _POST + _DELETE,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "ShadowEndpoints.shadow",
        ("/v2/repository/models/{model}/shadow",),
        _GET + _POST + _DELETE,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "TrafficEndpoints.rollout",
        ("/v2/repository/models/{model}/rollout",),
        _GET + _POST,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "SharedMemoryEndpoints.status",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/status",),
        _GET,
        "shared-memory",
        _REDIRECTED,
    ),
    Endpoint(
        "SharedMemoryEndpoints.register",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/register",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    Endpoint(
        "SharedMemoryEndpoints.unregister",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/unregister",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    Endpoint(
        "ConsoleEndpoints.page",
        ("/console[/static/{file}]",),
        _GET,
        "",
        _OWN,
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint("ConsoleEndpoints.facts", ("/console/facts",), _GET, "console", _OWN),
    Endpoint(
        "ConsoleEndpoints.stream",
        ("/console/stream",),
        _GET,
        "console",
        _OWN,
        at_once=True,
    ),
    Endpoint(
        "OpenAiModels.list_models", ("/v1/models", "/openai/v1/models"), _GET, "metadata", _OWN
    ),
    Endpoint(
        "OpenAiModels.retrieve",
        ("/v1/models/{model}", "/openai/v1/models/{model}"),
        _GET,
        "metadata",
        _OWN,
    ),
    Endpoint(
        "OpenAiModelManagement.load",
        ("/v1/models/{model}/load", "/openai/v1/models/{model}/load"),
        _POST,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint(
        "OpenAiModelManagement.unload",
        ("/v1/models/{model}/unload", "/openai/v1/models/{model}/unload"),
        _POST,
        "model-repository",
        _OWN,
        is_control=True,
        survives_disconnect=True,
    ),
    Endpoint("OpenAiModels.info", ("/info",), _GET, "metadata", _OWN),
    Endpoint("OpenAiModels.health", ("/health",), _GET, "health", _OWN, is_probe=True),
    _text_endpoint("OpenAiEmbeddings.create", "/v1/embeddings"),
    _text_endpoint("OpenAiEmbeddings.pool", "/v1/pooling", "/pooling"),
    _text_endpoint("OpenAiEmbeddings.embed", "/embed"),
    _text_endpoint("OpenAiEmbeddings.embed_all", "/embed_all"),
    _text_endpoint("OpenAiEmbeddings.embed_sparse", "/embed_sparse"),
    _text_endpoint("OpenAiCohereEmbeddings.create", "/v2/embed"),
    _text_endpoint("OpenAiRanking.rerank", "/v1/rerank", "/v2/rerank", "/rerank"),
    _text_endpoint("OpenAiRanking.ranking", "/v1/ranking"),
    _text_endpoint("OpenAiRanking.score", "/v1/score", "/score"),
    _text_endpoint("OpenAiRanking.similarity", "/similarity"),
    _text_endpoint("OpenAiClassification.classify", "/v1/classify", "/classify"),
    _text_endpoint("OpenAiClassification.predict", "/predict"),
    _text_endpoint("OpenAiClassification.moderate", "/v1/moderations"),
    _text_endpoint("OpenAiTokens.tokenize", "/v1/tokenize", "/tokenize"),
    _text_endpoint("OpenAiTokens.detokenize", "/v1/detokenize", "/detokenize"),
    _text_endpoint("OpenAiTokens.decode", "/decode"),
    _text_endpoint("OpenAiDecisions.decide", "/v1/decisions"),
    _text_endpoint("OpenAiDecisions.system_one", "/v1/systemone"),
    _text_endpoint("OpenAiCompletions.create", "/v1/completions"),
    _text_endpoint("OpenAiChat.create", "/v1/chat/completions"),
    _text_endpoint("OpenAiResponses.create", "/v1/responses"),
    _text_endpoint("OpenAiMessages.create", "/v1/messages"),
    _text_endpoint("OpenAiAudio.transcribe", "/v1/audio/transcriptions"),
    _text_endpoint("OpenAiMessages.count_tokens", "/v1/messages/count_tokens"),
)

# A name extends to the next slash or to the end. The pattern is possessive, so it never backtracks.
_NAME: Final = "[^/]++"
_PATTERNS_BY_MEMBER: Final = {"version": "[0-9]++", "memory_kind": "system|cuda"}
_ABSOLUTE: Final = re.compile(r"https?://[^/]*", re.IGNORECASE)


def _compiled(template: str) -> re.Pattern[str]:
    pattern = template.replace("[", "(?:").replace("]", ")?")
    for member in Route._fields[1:]:
        named = f"(?P<{member}>{_PATTERNS_BY_MEMBER.get(member, _NAME)})"
        pattern = pattern.replace(f"{{{member}}}", named)
    return re.compile(pattern)


_OPTIONAL: Final = re.compile(r"\[([^{]*\{(\w+)\})\]")
_PATTERNS: Final = [
    (_compiled(text), endpoint, text) for endpoint in ENDPOINTS for text in endpoint.templates
]
# No search is needed for targets without names.
_ENDPOINT_OF_PATH: Final = {
    text: endpoint for endpoint in ENDPOINTS for text in endpoint.templates if "{" not in text
}
_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


def resolve(target: bytes) -> Route:
    """Return the route of a request's target. The query is ignored."""
    path = path_of(target)
    known = _ENDPOINT_OF_PATH.get(path)
    if known is not None:
        return Route(known)
    for pattern, endpoint, _ in _PATTERNS:
        if match := pattern.fullmatch(path):
            try:
                names = {member: name_of(text) for member, text in match.groupdict("").items()}
            except ValueError:
                # No model, region or file can have such a name.
                break
            return Route(endpoint, **names)
    return Route(NOT_FOUND)


def name_of(segment: str) -> str:
    """Return the name in a segment of a path. Names are UTF-8, and any byte may be quoted (%20).

    Raises ValueError for bad UTF-8, a bad percent sign, or a quoted slash, which would split the
    name.
    """
    name = segment.encode("latin-1")
    if "%" in segment:
        if _PERCENT.search(segment):
            raise ValueError("a percent sign without two hexadecimal digits")
        name = unquote_to_bytes(name)
        if b"/" in name:
            raise ValueError("a slash in a name")
    return name.decode("utf-8")


def model_target(model: str, action: str) -> bytes:
    """Return the target of a model's route. action: the last segment of the path."""
    return f"/v2/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def repository_target(model: str, action: str) -> bytes:
    """Return the target of the route that loads or unloads a model."""
    return f"/v2/repository/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def template(target: bytes) -> str:
    """Return a target's template, such as /v2/models/{model}/infer, or an empty text."""
    path = path_of(target)
    for pattern, _, text in _PATTERNS:
        if match := pattern.fullmatch(path):
            names = match.groupdict("")
            return _OPTIONAL.sub(lambda part: part[1] if names[part[2]] else "", text)  # noqa: B023
    return ""


def path_of(target: bytes) -> str:
    """Return the path of a target in origin form or absolute form, without its query."""
    text = target.decode("latin-1")
    path = text.partition("?")[0].partition("#")[0]
    if not path.startswith("/") and (match := _ABSOLUTE.match(path)):
        return path[match.end() :] or "/"
    return path
