"""Hosts a backend's model in a confined process, until the executor finalises it."""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any, cast

from nereid.backends import EMPTY_DESCRIPTION, Capabilities, capabilities_of
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unimplemented
from nereid_executor.backends.native import messages
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.printed_lines import (
    begin_lines,
)
from nereid_executor.backends.registry import BackendRegistry

if TYPE_CHECKING:
    from nereid.backends import Backend, InstanceSpec, Model
    from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
        Channel,
    )


def run_host(channel: Channel, _last_batch: Any) -> int:
    """Run until the executor finalises the model; return the process's exit code.

    Raises wire.LostError if the executor has closed the socket.
    """
    channel.send(wire.STARTED, [])
    kind, body = channel.receive()
    spec = messages.read_spec(body)
    begin_lines(spec.name)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
    reply = wire.DESCRIBED if kind == wire.DESCRIBE else wire.INITIALIZED
    try:
        backend = BackendRegistry().load_backend(spec.config.backend)
        if kind == wire.DESCRIBE:
            description = backend.describe(spec.config, spec.version_path)
            channel.send(reply, messages.loaded_parts(description, Capabilities()))
            return 0
        model = _load(backend, spec)
    except Exception as error:
        channel.send(reply, messages.failed_parts(_reported(error)))
        return 1
    description = getattr(model, "description", EMPTY_DESCRIPTION)
    channel.send(reply, messages.loaded_parts(description, capabilities_of(model)))
    gc.collect()
    gc.freeze()
    while (frame := channel.receive())[0] != wire.FINALIZE:
        _execute(channel, model, frame[1])
    model.close()
    channel.send(wire.FINALIZED, [])
    return 0


def _load(backend: Backend, spec: InstanceSpec) -> Model:
    model = backend.load(spec)
    if capabilities_of(model).executes_requests:
        raise Unimplemented(
            f"unable to load model '{spec.config.name}', models of backend"
            f" '{spec.config.backend}' cannot have a process of their own"
        )
    # A PipelinedModel executes batches as a Model does, too.
    return cast("Model", model)


def _execute(channel: Channel, model: Model, body: bytearray) -> None:
    try:
        inputs, names = messages.read_batch(body)
        channel.send(wire.RESPONSES, messages.outputs_parts(model.execute(inputs, names)))
    except wire.LostError:
        raise
    except wire.WireError as error:
        channel.send(wire.RESPONSES, messages.error_parts(Internal(str(error))))
    except Exception as error:
        channel.send(wire.RESPONSES, messages.error_parts(_reported(error)))


def _reported(error: Exception) -> NereidError:
    """Return the error that clients see; an unexpected one is printed."""
    if isinstance(error, NereidError):
        return error
    traceback.print_exception(error)
    return Internal(INTERNAL_MESSAGE)
