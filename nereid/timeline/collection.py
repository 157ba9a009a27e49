"""Collection of timelines: a service makes frames in small pieces, for one caller at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError, Unavailable
from nereid.core.methods import TIMELINE_PATH
from nereid.core.retry_after import DEFAULT_MS
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import LOW_WATER_BYTES, RpcError, Status
from nereid.timeline import wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from nereid.rpc import Call, Channel
    from nereid.timeline.recorder import Recorder

    Collect = Callable[[pb.TimelineRequest], AsyncGenerator[bytes]]

# Maximum share of an event loop's time that is spent on making frames.
_SHARE: Final = 0.2
# Maximum number of callers that wait while a service makes frames for another caller.
_MAX_WAITING: Final = 8
_TOO_MANY: Final = "too many ask for the timeline at a time; try again"
OFF: Final = "it records nothing (--timeline-seconds=0)"
# Maximum bytes of another service's frames that may wait to be passed on.
_MAX_BUFFERED_BYTES: Final = 4 << 20


class OwnFrames:
    """The part of a timeline that a service records itself."""

    def __init__(self, recorder: Recorder, max_waiting: int = _MAX_WAITING) -> None:
        self._recorder = recorder
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._max_waiting = max_waiting

    async def collect(self, last_ns: int) -> AsyncGenerator[bytes]:
        """Yield frames of the last `last_ns`; raise Unavailable if too many callers wait."""
        if self._waiting >= self._max_waiting:
            raise Unavailable(_TOO_MANY, retry_after_ms=DEFAULT_MS)
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            frames = self._recorder.frames(last_ns)
            while True:
                began_ns = monotonic_ns()
                frame = next(frames, None)
                took_s = (monotonic_ns() - began_ns) / 1e9
                if frame is None:
                    return
                yield frame
                await asyncio.sleep(took_s * (1 / _SHARE - 1))
        finally:
            self._turn.release()


class _NoFrames(OwnFrames):
    def __init__(self) -> None:
        pass

    async def collect(self, last_ns: int) -> AsyncGenerator[bytes]:  # noqa: ARG002 - of OwnFrames
        raise Unavailable(OFF)
        yield b""


NO_FRAMES: Final = _NoFrames()


class TimelineStreams:
    """The server's side of timeline calls. It sends the frames of `collect` to each caller."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, call: Call) -> None:
        """Serve a call. This method is a StreamHandler."""

        def on_message(message: bytes) -> None:
            call.on_message = None
            task = asyncio.get_running_loop().create_task(self._serve(call, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            call.on_cancel = lambda: _cancel(task)

        call.on_message = on_message
        call.accept()

    async def _serve(self, call: Call, message: bytes) -> None:
        writable = asyncio.Event()
        call.on_writable = writable.set
        try:
            request = pb.TimelineRequest.FromString(message)
            async for frame in self._collect(request):
                call.send(frame)
                while call.buffered_bytes > LOW_WATER_BYTES:
                    writable.clear()
                    await writable.wait()
            call.finish()
        except DecodeError:
            call.fail(Status.INTERNAL, "Unable to parse request")
        except NereidError as error:
            call.fail(Status(error.code), error.message)
        except Exception as error:
            call.fail_with(error)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class Alignment:
    """Converts the clocks of a service, and of services behind it, to this service's clock."""

    def __init__(self, clock: str) -> None:
        """Begin to measure; create the object at the moment when the request is sent."""
        self._clock = clock
        self._asked_ns = monotonic_ns()
        self._replied_ns = 0
        self._offset_ns = self._error_ns = 0

    def aligned(self, frame: bytes) -> bytes:
        """Return a frame with the offset for its times.

        Call this as soon as the first frame arrives, because the measurement ends then.
        """
        if not self._replied_ns:
            self._replied_ns = monotonic_ns()
        message = pb.TimelineFrame.FromString(frame)
        if not message.HasField("service"):
            return frame
        service = message.service
        if service.now_ns:
            # Only the asked service sets now_ns, read about halfway between request and reply.
            self._offset_ns = (self._asked_ns + self._replied_ns) // 2 - service.now_ns
            self._error_ns = (self._replied_ns - self._asked_ns) // 2
            service.now_ns = 0
        if self._clock and service.clock == self._clock:
            service.offset_ns = service.error_ns = 0
        else:
            service.offset_ns += self._offset_ns
            service.error_ns += self._error_ns
        return message.SerializeToString()


class RemoteFrames:
    """The frames of another service. The constructor requests the frames; close() ends the call."""

    def __init__(
        self, channel: Channel, request: pb.TimelineRequest, clock: str, *, silence_limit_s: float
    ) -> None:
        """Request the frames; silence_limit_s is the maximum wait for each frame."""
        self._silence_limit_s = silence_limit_s
        self._frames: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._paused = self._ended = False
        self._error: RpcError | None = None
        self._changed = asyncio.Event()
        self._alignment = Alignment(clock)
        self._stream = channel.stream(
            TIMELINE_PATH, on_message=self._on_message, on_close=self._on_close
        )
        self._stream.send(request.SerializeToString())
        self._stream.half_close()

    def _on_message(self, message: bytes) -> None:
        try:
            frame = self._alignment.aligned(message)
        except DecodeError:
            self._error = RpcError(Status.INTERNAL, "a frame that cannot be read")
            self.close()
            return
        self._frames.append(frame)
        self._buffered_bytes += len(frame)
        if self._buffered_bytes > _MAX_BUFFERED_BYTES and not self._paused:
            self._paused = True
            self._stream.pause()
        self._changed.set()

    def _on_close(self, error: RpcError | None) -> None:
        self._error = self._error or error
        self._ended = True
        self._changed.set()

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield the frames, each with its clock's offset; raise RpcError on failure or silence."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._buffered_bytes -= len(frame)
                if self._paused and not self._frames:
                    self._paused = False
                    self._stream.resume()
                yield frame
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(self._silence_limit_s):
                    await self._changed.wait()
            except TimeoutError:
                text = f"it has sent nothing for {self._silence_limit_s:g} s"
                raise RpcError(Status.DEADLINE_EXCEEDED, text) from None

    def close(self) -> None:
        """Cancel the call, which ends read()."""
        self._ended = True
        self._changed.set()
        self._stream.cancel()


async def read_all(sources: Iterable[tuple[str, RemoteFrames]]) -> AsyncGenerator[bytes]:
    """Yield the services' frames in turn, or a frame that says that a service is missing."""
    for name, source in sources:
        try:
            async for frame in source.read():
                yield frame
        except RpcError as error:
            yield wire.missing_frame(f"{name}: {error.message}")
        finally:
            source.close()
