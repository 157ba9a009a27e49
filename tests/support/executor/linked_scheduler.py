"""A scheduler as far as the links of executors' models need one."""

from __future__ import annotations

from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, FromScheduler, InferRequest, ToScheduler
from nereid.rpc import Call, Link, accept_link
from tests.support.waiting import until

DOMAIN = "here"


class LinkedScheduler:
    """Greets whoever opens a link; the test responds."""

    def __init__(self) -> None:
        self.link: Link[FromScheduler]
        self.received: list[ToScheduler] = []

    def accept(self, call: Call) -> None:
        self.link = accept_link(call, _Codec(), on_items=self.received.extend, on_down=lambda: None)
        self.link.send(CachedModels((), DOMAIN))

    async def requests(self, count: int) -> list[InferRequest]:
        """All requests, once they are so many."""
        await until(lambda: len(self.requests_so_far()) == count)
        return self.requests_so_far()

    def requests_so_far(self) -> list[InferRequest]:
        return [each for each in self.received if isinstance(each, InferRequest)]


class _Codec:
    def __init__(self) -> None:
        out = ResponseCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = RequestCodec().decode
