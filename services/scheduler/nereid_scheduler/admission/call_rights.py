"""Rights of the requests that models make: those of the clients whose requests they execute.

A confined model has no right of its own, unless --sandbox-call gives it one, and may call only what
each of these clients may use.
"""

# layout: covered

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nereid.core.callable_models import (
    ALL_CALLABLE,
    NOTHING_CALLABLE,
    join_callable_models,
    may_call,
)
from nereid.core.errors import NereidError, PermissionDenied
from nereid.core.wire.codecs import write_error
from nereid.core.wire.messages import InferRequest, error_status_of
from nereid.observability.refusal_log import RefusalLog
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.admission.request_names import model_and_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid_scheduler.versions.waits.nested_calls import HostedInstance

_log = logging.getLogger(__name__)

_MAX_NAME: Final = 100


class CallRights:
    """Rights of models' requests."""

    def __init__(
        self,
        placed: Mapping[int, HostedInstance],
        on_enabled: Callable[[], None] = lambda: None,
    ) -> None:
        """placed: maps the numbers of instances to instances. on_enabled: called once."""
        self._placed = placed
        self._on_enabled = on_enabled
        self._refusals = RefusalLog(_log)
        # True once a gateway has connected that checks its clients' rights.
        self.has_access_control = False

    def enable(self) -> None:
        """Refuse calls of confined models for which no client's request is known."""
        if not self.has_access_control:
            self.has_access_control = True
            self._on_enabled()

    def rights_for(self, query: pb.CallQuery) -> pb.CallRights:
        """Return the rights for a call whose model another scheduler may have."""
        request = InferRequest(
            0,
            query.head,
            [],
            caller=query.caller,
            confined_caller=query.confined_caller,
            callable_models=query.callable_models,
        )
        rights = pb.CallRights(number=query.number)
        try:
            self.apply(request)
        except NereidError as error:
            write_error(error_status_of(error), rights.error)
        else:
            rights.callable_models = request.callable_models or ALL_CALLABLE
        return rights

    def apply(self, request: InferRequest) -> None:
        """Give a model's request its clients' rights; raise PermissionDenied if they lack one."""
        placed = self._placed.get(request.confined_caller or request.caller)
        entries = () if placed is None else placed.instance.batches.entries()
        if entries:
            # The instance may make the request for any of its entries.
            request.callable_models = join_callable_models(
                entry.request.callable_models for entry in entries
            )
        elif self.has_access_control and placed is None and not request.callable_models:
            # Another scheduler knows the clients.
            request.callable_models = NOTHING_CALLABLE
        if request.confined_caller and (request.callable_models or self.has_access_control):
            self._check(request, placed, has_clients=bool(entries))

    def _check(
        self, request: InferRequest, placed: HostedInstance | None, *, has_clients: bool
    ) -> None:
        name, _ = model_and_version(request.head)
        if placed is None:
            why = "its instance is at another scheduler, which knows its clients"
        elif not has_clients:
            why = "it executes no request of a client"
        elif may_call(request.callable_models, name):
            return
        else:
            why = "the client of a request has no right to use the API 'inference' with it"
        caller = "a model" if placed is None else placed.instance.name
        self._refusals.report(
            caller,
            caller,
            "confined model made a call that it has no right to: instance=%s model=%s (%s);"
            " --sandbox-call can give the model the right",
            name[:_MAX_NAME],
            why,
        )
        raise PermissionDenied(
            f"the confined model may not call model '{name[:_MAX_NAME]}': {why} (--sandbox-call)"
        )
