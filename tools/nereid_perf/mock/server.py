"""The mock server: HTTP and gRPC in front of one set of service times."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from nereid.pb import kserve_pb2 as pb
from nereid.rpc.grpc.handlers import Handlers
from nereid.rpc.grpc.server import Server
from nereid.rpc.grpc.status import Status
from nereid.rpc.net.address import text_of
from nereid.rpc.net.tls_files import Tls, TlsFiles
from nereid_perf.mock.delayed_calls import DelayedCalls
from nereid_perf.mock.http_protocol import HttpProtocol
from nereid_perf.mock.model import (
    EXTENSIONS,
    FAILURE,
    MockModel,
    config_message,
    metadata_message,
    statistics_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.handlers import UnaryHandler
    from nereid_perf.endpoint import TlsSettings
    from nereid_perf.mock.service_times import ServiceTimes

_SERVICE: Final = "/inference.GRPCInferenceService/"


class MockServer:
    """A mock server, which runs in one event loop."""

    def __init__(
        self,
        model: MockModel,
        times: ServiceTimes,
        *,
        between_ns: int = 0,
        fail_percent: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.model = model
        self._times = times
        self._between_ns = between_ns
        self._fail_share = fail_percent / 100
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._calls = DelayedCalls()
        self._message = model.grpc_response().SerializeToString()
        self._http: list[asyncio.Server] = []
        self._http_connections: set[HttpProtocol] = set()
        self._grpc = Server(self._handlers())

    async def listen(
        self,
        http: tuple[str, int] | None,
        grpc: tuple[str, int] | None,
        tls: TlsSettings | None = None,
    ) -> list[str]:
        """Listen, and return the addresses; port 0 takes any free port. May raise OSError.

        tls: the server's certificate, and the authority whose certificates clients must have.
        """
        addresses = []
        if http is not None:
            served = None if tls is None else _server_tls(tls, "http/1.1").context()
            server = await asyncio.get_running_loop().create_server(
                self._new_http_protocol, *http, ssl=served
            )
            self._http.append(server)
            addresses.append(text_of(server.sockets[0].getsockname()))
        if grpc is not None:
            encrypted = None if tls is None else _server_tls(tls, "h2")
            addresses.append(await self._grpc.listen(text_of(grpc), encrypted))
        return addresses

    async def close(self) -> None:
        """Close all connections and ports."""
        for server in self._http:
            server.close()
        for connection in tuple(self._http_connections):
            connection.abort()
        await self._grpc.close()
        self._calls.close()

    def serve(self, respond: Callable[[bool], None]) -> None:
        """Serve a request: call `respond` when it is done, with True if the request must fail."""
        now_ns = monotonic_ns()
        start_ns, end_ns = self._times.serve(now_ns)
        self.model.count(now_ns, start_ns, end_ns)
        fails = bool(self._fail_share) and self._random.random() < self._fail_share
        self._calls.call_at(end_ns, partial(respond, fails))

    def _new_http_protocol(self) -> HttpProtocol:
        return HttpProtocol(self.model, self.serve, self._http_connections)

    def _handlers(self) -> Handlers:
        control: dict[str, Callable[[bytes], Any]] = {
            "ServerLive": lambda _: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda _: pb.ServerReadyResponse(ready=True),
            "ModelReady": lambda _: pb.ModelReadyResponse(ready=True),
            "ServerMetadata": lambda _: pb.ServerMetadataResponse(
                name="mock", version="1", extensions=EXTENSIONS
            ),
            "ModelMetadata": lambda message: metadata_message(
                self.model.metadata(pb.ModelMetadataRequest.FromString(message).name)
            ),
            "ModelConfig": lambda message: config_message(
                self.model.config(pb.ModelConfigRequest.FromString(message).name)
            ),
            "ModelStatistics": lambda message: statistics_message(
                self.model.statistics(pb.ModelStatisticsRequest.FromString(message).name)
            ),
        }
        # The mock neither reads nor writes tensors.
        control |= {
            "SystemSharedMemoryRegister": lambda _: pb.SystemSharedMemoryRegisterResponse(),
            "SystemSharedMemoryUnregister": lambda _: pb.SystemSharedMemoryUnregisterResponse(),
            "SystemSharedMemoryStatus": lambda _: pb.SystemSharedMemoryStatusResponse(),
        }
        unary: dict[str, UnaryHandler] = {
            _SERVICE + name: partial(_reply, make) for name, make in control.items()
        }
        unary[_SERVICE + "ModelInfer"] = self._infer
        return Handlers(unary=unary, stream={_SERVICE + "ModelStreamInfer": self._open_stream})

    def _infer(self, call: Call, message: bytes) -> None:
        request_id = pb.ModelInferRequest.FromString(message).id

        def respond(fails: bool) -> None:
            if fails:
                call.fail(Status.INTERNAL, FAILURE)
            elif request_id:
                # protobuf reads two concatenated messages as one message with the fields of both.
                named = pb.ModelInferResponse(id=request_id).SerializeToString()
                call.reply(self._message + named)
            else:
                call.reply(self._message)

        self.serve(respond)

    def _open_stream(self, call: Call) -> None:
        _InferStream(self, call)

    def call_later(self, delays: int, call: Callable[[], None]) -> None:
        """Call a function after a time of this many intervals between responses."""
        self._calls.call_at(monotonic_ns() + delays * self._between_ns, call)


def _server_tls(tls: TlsSettings, alpn: str) -> Tls:
    files = TlsFiles(cert=tls.cert, key=tls.key, root=tls.root, alpn=alpn)
    return Tls(files, server=True)


def _reply(make: Callable[[bytes], Any], call: Call, message: bytes) -> None:
    call.reply(make(message).SerializeToString())


class _InferStream:
    def __init__(self, server: MockServer, call: Call) -> None:
        self._server = server
        self._call = call
        self._pending = 0
        self._half_closed = False
        call.accept()
        call.on_message = self._on_message
        call.on_half_close = self._on_half_close

    def _on_message(self, message: bytes) -> None:
        request = pb.ModelInferRequest.FromString(message)
        wants_final = request.parameters["triton_enable_empty_final_response"].bool_param
        self._pending += 1
        self._server.serve(partial(self._respond, request.id, wants_final))

    def _on_half_close(self) -> None:
        self._half_closed = True
        self._finish_if_over()

    def _respond(self, request_id: str, wants_final: bool, fails: bool) -> None:
        if fails:
            failed = pb.ModelStreamInferResponse(error_message=FAILURE)
            failed.infer_response.id = request_id
            self._send(failed, is_last=True)
            return
        number = self._server.model.responses
        if number == 1 and not wants_final:
            response = self._server.model.grpc_response()
            response.id = request_id
            self._send(pb.ModelStreamInferResponse(infer_response=response), is_last=True)
            return
        self._send_one(request_id, wants_final, number)

    def _send_one(self, request_id: str, wants_final: bool, left: int) -> None:
        """Send one response and schedule the rest; left: number of responses to send."""
        if not left:
            final = pb.ModelInferResponse(model_name="mock", id=request_id)
            final.parameters["triton_final_response"].bool_param = True
            self._send(pb.ModelStreamInferResponse(infer_response=final), is_last=True)
            return
        response = self._server.model.grpc_response()
        response.id = request_id
        response.parameters["triton_final_response"].bool_param = False
        is_last = left == 1 and not wants_final
        self._send(pb.ModelStreamInferResponse(infer_response=response), is_last=is_last)
        if not is_last:
            again = partial(self._send_one, request_id, wants_final, left - 1)
            self._server.call_later(1 if left > 1 else 0, again)

    def _send(self, response: pb.ModelStreamInferResponse, *, is_last: bool) -> None:
        if not self._call.done:
            self._call.send(response.SerializeToString())
        self._pending -= is_last
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._half_closed and not self._pending and not self._call.done:
            self._call.finish()
