"""RPCs of the model repository extension: index, load and unload, with KServe's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.methods import SCHEDULER
from nereid.core.permitted_models import permitted_models
from nereid.pb import kserve_pb2
from nereid_scheduler.core.models.overrides import read_override
from nereid_scheduler.core.models.version_change import read_version
from nereid_scheduler.pages.control import control_handler
from nereid_scheduler.pages.repository_index import repository_index

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.control.sources.model_control import ModelControl
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.placement.models.catalogue import Catalogue

_UNLOAD_DEPENDENTS: Final = "unload_dependents"


def repository_handlers(
    control: ModelControl, catalogue: Catalogue, desired: DesiredModels
) -> dict[str, Respond]:
    """Return the handlers by path."""

    async def index(request: kserve_pb2.RepositoryIndexRequest) -> Message:
        _require_no_repository(request.repository_name)
        found = await control.found_names()
        return repository_index(catalogue, desired, found, ready_only=request.ready)

    async def load(request: kserve_pb2.RepositoryModelLoadRequest) -> Message:
        _require_no_repository(request.repository_name)
        await control.load(
            request.model_name,
            read_override(request.parameters),
            permitted_models(request),
            read_version(request.parameters),
        )
        return kserve_pb2.RepositoryModelLoadResponse()

    async def unload(request: kserve_pb2.RepositoryModelUnloadRequest) -> Message:
        _require_no_repository(request.repository_name)
        dependents = request.parameters.get(_UNLOAD_DEPENDENTS)
        if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgument(
                f"invalid value type for '{_UNLOAD_DEPENDENTS}' parameter, expected bool_param."
            )
        unload_dependents = dependents is not None and dependents.bool_param
        await control.unload(
            request.model_name,
            permitted_models(request),
            read_version(request.parameters),
            dependents=unload_dependents,
        )
        return kserve_pb2.RepositoryModelUnloadResponse()

    pb = kserve_pb2
    return {
        SCHEDULER + "RepositoryIndex": control_handler(pb.RepositoryIndexRequest, index),
        SCHEDULER + "RepositoryModelLoad": control_handler(pb.RepositoryModelLoadRequest, load),
        SCHEDULER + "RepositoryModelUnload": control_handler(
            pb.RepositoryModelUnloadRequest, unload
        ),
    }


def _require_no_repository(name: str) -> None:
    if name:
        raise Unimplemented("'repository_name' specification is not supported")
