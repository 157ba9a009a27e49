"""Gives gateways the files with which they turn texts into a model's tensors.

The scheduler does not know what the files mean. They must be those with which the version was
loaded: a tokenizer of another revision would give wrong results without an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final

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


# Files that are kept, of all versions together; one with more is read again each time.
_KEPT_BYTES: Final = 64 << 20


class KeptFiles:
    """The files of the versions that gateways have asked for last, by the versions' digests.

    So all gateways get the files of the load, also while those of the next load are being written.
    """

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._contents: OrderedDict[bytes, dict[str, bytes]] = OrderedDict()

    def find(self, digest: bytes) -> dict[str, bytes] | None:
        """Return the files of a version, or `None`."""
        contents = self._contents.get(digest)
        if contents is not None:
            self._contents.move_to_end(digest)
        return contents

    def keep(self, digest: bytes, contents: dict[str, bytes]) -> None:
        """Keep the files of a version, and forget those that were asked for longest ago."""
        size_bytes = _size_bytes(contents)
        if digest in self._contents or size_bytes > self._max_bytes:
            return
        self._contents[digest] = contents
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            _, forgotten = self._contents.popitem(last=False)
            self._size_bytes -= _size_bytes(forgotten)


def _size_bytes(contents: dict[str, bytes]) -> int:
    return sum(map(len, contents.values()))


def text_handlers(
    catalogue: Catalogue,
    on_demand: OnDemandModels,
    ensure: Callable[[str, str], Awaitable[None]],
) -> dict[str, Respond]:
    """Return the handler of ModelText by its path."""
    kept = KeptFiles()

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
        return await _describe(served, request.known_digest, kept)

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


async def _describe(served: ServedVersion, known_digest: bytes, kept: KeptFiles) -> Message | bytes:
    response = pb.ModelTextResponse(
        version=str(served.number), digest=served.text_digest, loaded_s=_loaded_s(served)
    )
    if response.digest == known_digest:
        return response
    response.config.CopyFrom(served.ready_config)
    contents = kept.find(response.digest)
    if contents is None:
        # Tokenizers have up to tens of megabytes, too many to read and copy in the event loop.
        contents = await asyncio.to_thread(_read_files, served)
        kept.keep(response.digest, contents)
    return await asyncio.to_thread(_with_files, response, contents)


def _read_files(served: ServedVersion) -> dict[str, bytes]:
    try:
        return served.text_files.read()
    except OSError as error:
        # Clients see this error: it contains no paths.
        file = f"{Path(error.filename).name}: " if error.filename else ""
        raise Unavailable(
            f"files of model '{served.plain_name}' cannot be read: {file}{error.strerror}"
        ) from error


def _with_files(response: pb.ModelTextResponse, contents: dict[str, bytes]) -> bytes:
    response.files.update(contents)
    return response.SerializeToString()


def _loaded_s(served: ServedVersion) -> int:
    """Return when the version became ready, in seconds since the epoch."""
    if served.load_started_s is None or served.load_duration_s is None:
        return 0
    age_s = time.monotonic() - served.load_started_s - served.load_duration_s
    return round(time.time() - age_s)
