"""A backend that streams tokens, on the public contract alone (docs/backend-authors.md).

Its model file, model.json, maps a word to the word that follows it. A request has a `prompt`, and
gets one response for each `token` that continues it, until a word has no successor, `max_tokens`
are made, or the client cancels. One thread makes the next token of all open requests in turn, as a
language model computes one step for all of them. The model's configuration:

    backend: "tokens"
    input { name: "prompt" data_type: TYPE_STRING dims: 1 }
    input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 optional: true }
    output { name: "token" data_type: TYPE_STRING dims: 1 }
    model_transaction_policy { decoupled: true }
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nereid.backends import (
    EMPTY_DESCRIPTION,
    BatchUpdate,
    Capabilities,
    ControlKind,
    InstanceSpec,
    ModelDescription,
    Request,
    RequestModel,
    Response,
)
from nereid.backends.model_file import find_model_file
from nereid.backends.parameters import parameters_of, parse_count
from nereid.backends.request_arrays import RequestArrays, error_response
from nereid.core.errors import InvalidArgument, NereidError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from nereid.pb import model_config_pb2

DEFAULT_FILENAME = "model.json"
DEFAULT_MAX_TOKENS = 64


def uses_gpus() -> bool:
    """Return False: words are looked up on the host."""
    return False


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Return nothing: the configuration says all, as the file has no tensors."""
    find_model_file(config, version_path, DEFAULT_FILENAME)
    return EMPTY_DESCRIPTION


def load(spec: InstanceSpec) -> TokenModel:
    """Return a model that is ready to generate."""
    config = spec.config
    if not config.model_transaction_policy.decoupled:
        raise InvalidArgument(f"model '{config.name}' streams: its configuration must be decoupled")
    path = find_model_file(config, spec.version_path, DEFAULT_FILENAME)
    milliseconds = parse_count(config, parameters_of(config), "milliseconds_per_token")
    return TokenModel(spec, json.loads(path.read_text()), milliseconds / 1000)


@dataclass
class Generation:
    """One request that is being responded to."""

    request: Request
    shape: tuple[int, ...]
    word: str
    remaining: int
    paused: bool = False


class TokenModel(RequestModel):
    """Generates in a thread of its own; the instance's thread passes requests and responses on."""

    capabilities = Capabilities(executes_requests=True)

    def __init__(self, spec: InstanceSpec, successors: Mapping[str, str], pause_s: float) -> None:
        """pause_s: stands for the time that a language model computes for one step."""
        self._arrays = RequestArrays(spec)
        self._successors = successors
        self._pause_s = pause_s
        # By batch and member.
        self._open: dict[tuple[int, int], Generation] = {}
        self._updates: deque[BatchUpdate] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        # Readable while there are updates to collect.
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._generate, name=f"tokens-{spec.name}")
        self._thread.start()

    # ---- called by the instance's thread

    def file_descriptors(self) -> Sequence[int]:
        """Return the event that is set with each update."""
        return (self._event,)

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        """Begin to generate for each request; the instance can have its next batch at once."""
        failed = []
        with self._changed:
            for member, request in enumerate(requests):
                try:
                    self._open[batch, member] = self._read(request)
                except NereidError as error:
                    failed.append(error_response(member, error))
            self._report(BatchUpdate(batch, failed, ready_for_next=True))
            self._changed.notify()

    def control_request(self, batch: int, member: int, kind: int) -> None:
        """Stop a request that is cancelled, and pause one whose client cannot keep up."""
        with self._changed:
            generation = self._open.get((batch, member))
            if generation is None:
                return
            if kind == ControlKind.CANCEL:
                self._end(batch, member)
            generation.paused = kind == ControlKind.PAUSE
            self._changed.notify()

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        """Yield the responses so far."""
        if self._event in ready:
            os.eventfd_read(self._event)
        while self._updates:
            yield self._updates.popleft()

    def terminate(self) -> None:
        """End all requests; may be called by another thread while the model is warmed up."""
        with self._changed:
            for batch, member in [*self._open]:
                self._end(batch, member)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._changed:
            self._changed.notify()
        self._thread.join()
        os.close(self._event)

    # ---- called with the lock held

    def _read(self, request: Request) -> Generation:
        inputs = self._arrays.read_inputs(request)
        prompt = inputs["prompt"]
        words = b"" if not prompt.size else prompt.flat[0]
        last_word = words.decode(errors="replace").rpartition(" ")[2]
        limit = inputs.get("max_tokens")
        return Generation(
            request,
            prompt.shape,
            last_word,
            DEFAULT_MAX_TOKENS if limit is None or not limit.size else int(limit.flat[0]),
        )

    def _report(self, update: BatchUpdate) -> None:
        self._updates.append(update)
        os.eventfd_write(self._event, 1)

    def _end(self, batch: int, member: int) -> None:
        """Send the last response, which has no outputs."""
        del self._open[batch, member]
        self._report(BatchUpdate(batch, [Response(member, more=False)], ready_for_next=False))

    def _step(self, batch: int, member: int, generation: Generation) -> None:
        """Send the next token of a request, or its end."""
        word = self._successors.get(generation.word)
        if word is None or generation.remaining <= 0:
            self._end(batch, member)
            return
        generation.word = word
        generation.remaining -= 1
        outputs = {"token": np.full(generation.shape, word, np.object_)}
        response = self._arrays.make_response(generation.request, member, outputs, more=True)
        self._report(BatchUpdate(batch, [response], ready_for_next=False))

    # ---- the model's own thread

    def _generate(self) -> None:
        while not self._closed.wait(self._pause_s):
            with self._changed:
                running = [each for each in self._open.items() if not each[1].paused]
                if not running and not self._closed.is_set():
                    self._changed.wait()
                for (batch, member), generation in running:
                    self._step(batch, member, generation)
