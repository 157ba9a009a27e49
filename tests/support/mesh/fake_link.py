"""A link to the scheduler whose other end is the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import Cancel, ErrorStatus, InferRequest, InferResponse, Release
from nereid.mesh_routing.router.router import Callbacks
from nereid.shm.mappings import SegmentLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import FromScheduler, InferResponse, ToScheduler


class FakeLink:
    """Keeps what is sent; the test calls on_items, on_up and on_down."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.sent: list[ToScheduler] = []
        self.closed = False
        # How many items were not to wait for others.
        self.sent_at_once = 0
        self.on_items: Callable[[list[FromScheduler]], None]
        self.on_up: Callable[[], None]
        self.on_down: Callable[[], None]

    def open(
        self,
        *,
        on_items: Callable[[list[FromScheduler]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> Self:
        """A mesh_routing.route.OpenLink."""
        self.on_items, self.on_up, self.on_down = on_items, on_up, on_down
        if self.up:
            on_up()
        return self

    def send(self, item: ToScheduler, at_once: bool = False) -> None:
        self.sent.append(item)
        self.sent_at_once += at_once

    def close(self) -> None:
        self.closed = True

    def sent_ids(self) -> list[int]:
        """Return the ids of requests sent since the last call, negative for cancellations."""
        sent, self.sent = self.sent, []
        assert not any(isinstance(item, Release) for item in sent)
        return [-item.id if isinstance(item, Cancel) else item.id for item in sent]  # type: ignore[union-attr]


IGNORE: Final = Callbacks(lambda _: None, lambda _: None)


class UnsharedTensors:
    """The pending_requests.TensorSharing of a process that shares no memory; keeps what it was
    called with.
    """

    shared = False

    def __init__(self) -> None:
        self.made_inline: list[InferRequest] = []
        # True if the segments of all responses are lost.
        self.lost = False
        # True if there is no memory to open them.
        self.full = False

    def on_scheduler_domain(self, domain: str) -> None:
        """Do nothing."""

    def make_inline(self, request: InferRequest) -> None:
        self.made_inline.append(request)

    def open_response(self, response: InferResponse) -> None:
        if self.full:
            raise MemoryError
        assert self.lost, response
        raise SegmentLostError("gone")

    def lost_response(self, response: InferResponse) -> InferResponse:
        assert self.full, response
        return InferResponse(response.id, error=ErrorStatus(Unavailable.code, "lost"))
