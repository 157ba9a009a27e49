"""Gives gateways the files with which they turn texts into a model's tensors.

The scheduler does not know what the files mean. They must be those with which the version was
loaded: a tokenizer of another revision would give wrong results without an error.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.core.errors import Unavailable
from nereid.core.methods import SCHEDULER
from nereid.pb import nereid_pb2 as pb
from nereid.text import may_be_text_model
from nereid_scheduler.pages.control import control_handler
from nereid_scheduler.placement.models.traffic_split import find_split

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from google.protobuf.message import Message

    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.core.models.on_demand_models import OnDemandModels
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion


def text_handlers(
    catalogue: Catalogue,
    on_demand: OnDemandModels,
    ensure: Callable[[str, str], Awaitable[None]],
) -> dict[str, Respond]:
    """Return the handler of ModelText by its path."""

    async def respond(request: pb.ModelTextRequest) -> Message | bytes:
        if not request.name:
            names = {*_ready_names(catalogue), *_names_on_demand(on_demand)}
            return pb.ModelTextResponse(names=sorted(names))
        await ensure(request.name, request.version)
        served = catalogue.require(request.name, request.version)
        split = None if request.version else find_split(catalogue, request.name, may_wait=False)
        if split is not None:
            # Requests with a text go to versions with the same files as this one.
            served = split.heaviest or served
        return await _describe(served, request.known_digest)

    return {SCHEDULER + "ModelText": control_handler(pb.ModelTextRequest, respond)}


def _ready_names(catalogue: Catalogue) -> Iterator[str]:
    for model in catalogue.models():
        for served in model.ready_versions():
            if may_be_text_model(served.ready_config, served.text_files.states.keys()):
                yield model.plain_name


def _names_on_demand(models: OnDemandModels) -> Iterator[str]:
    for model in models.values():
        found = model.found
        names = {name for files in found.text_files.values() for name in files.states}
        if model.error is None and may_be_text_model(found.draft, names):
            yield found.plain_name


async def _describe(served: ServedVersion, known_digest: bytes) -> Message | bytes:
    response = pb.ModelTextResponse(
        version=str(served.number), digest=served.text_digest, loaded_s=_loaded_s(served)
    )
    if response.digest == known_digest:
        return response
    response.config.CopyFrom(served.ready_config)
    # Tokenizers have up to tens of megabytes, too many to read and copy in the event loop.
    return await asyncio.to_thread(_with_files, served, response)


def _with_files(served: ServedVersion, response: pb.ModelTextResponse) -> bytes:
    try:
        contents = served.text_files.read()
    except OSError as error:
        # Clients see this error: it contains no paths.
        file = f"{Path(error.filename).name}: " if error.filename else ""
        raise Unavailable(
            f"files of model '{served.plain_name}' cannot be read: {file}{error.strerror}"
        ) from error
    response.files.update(contents)
    return response.SerializeToString()


def _loaded_s(served: ServedVersion) -> int:
    """Return when the version became ready, in seconds since the epoch."""
    if served.load_started_s is None or served.load_duration_s is None:
        return 0
    age_s = time.monotonic() - served.load_started_s - served.load_duration_s
    return round(time.time() - age_s)
