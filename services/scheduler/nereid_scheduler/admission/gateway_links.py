"""Links to all gateways, and to models that make calls. Each link has a session.

A new link is first sent all current notices. A shutdown is announced on each link before a request
is returned over it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.methods import ACCESS_CONTROL_KEY, MODEL_CALLS_KEY, SHM_NAMESPACE_KEY
from nereid.core.wire.messages import Ownership
from nereid.rpc import accept_link
from nereid_scheduler.admission.gateway_codec import GatewayCodec, RemoteGatewayCodec
from nereid_scheduler.admission.gateway_session import GatewaySession

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.core.wire.messages import FromScheduler, Notice
    from nereid.rpc import Call, Link
    from nereid_scheduler.admission.admission import Admission
    from nereid_scheduler.core.requests.segment_owners import SegmentOwners

# Only for a mesh with one scheduler. Other notices have the models that a scheduler owns.
_LEAVING: Final = Ownership("", 0, (), leaving=True)


class GatewayLinks:
    """Links to all gateways that are connected."""

    def __init__(
        self,
        admission: Admission,
        segment_owners: SegmentOwners,
        notices: Callable[[bool], Iterable[Notice]],
    ) -> None:
        """notices: takes whether the gateway shares memory; returns the current notices."""
        self._admission = admission
        self._segment_owners = segment_owners
        self._notices = notices
        self._links: dict[GatewaySession, Link[FromScheduler]] = {}
        # Calls of gateways that connected before the scheduler had started.
        self._early_calls: list[Call] = []
        self._started = False
        self._leaving = False

    @property
    def sessions(self) -> Collection[GatewaySession]:
        """Sessions of all accepted gateways, as a live view."""
        return self._links.keys()

    def __len__(self) -> int:
        return len(self._links) + sum(not call.done for call in self._early_calls)

    def start(self) -> None:
        """Accept the waiting gateways; from now on each new one is accepted at once."""
        self._started = True
        early, self._early_calls = self._early_calls, []
        for call in early:
            if not call.done:
                self.accept_call(call)

    def accept_call(self, call: Call) -> None:
        """Accept a gateway that connects over a socket."""
        if not self._started:
            # The gateway's link is down until start() accepts the call.
            self._early_calls.append(call)
            return
        if call.get(ACCESS_CONTROL_KEY) is not None:
            self._admission.call_rights.enable()
        domain = call.get(SHM_NAMESPACE_KEY) if call.peer_is_local else None
        session = GatewaySession(
            self._admission,
            self._segment_owners,
            str(domain or ""),
            for_models=call.get(MODEL_CALLS_KEY) is not None,
        )
        codec = GatewayCodec() if session.shares else RemoteGatewayCodec()
        on_down = partial(self._on_down, session)
        self._add(session, accept_link(call, codec, on_items=session.on_items, on_down=on_down))

    def attach(self, link: Link[FromScheduler], *, has_access_control: bool = False) -> None:
        """Serve a gateway in this process. Call this before the gateway sends its first item."""
        if has_access_control:
            self._admission.call_rights.enable()
        session = GatewaySession(self._admission, self._segment_owners, self._segment_owners.domain)
        link.on_items = session.on_items
        link.on_down = partial(self._on_down, session)
        self._add(session, link)

    def send_notice(self, notice: Notice) -> None:
        """Send a notice to all accepted gateways."""
        for link in self._links.values():
            link.send(notice)

    def send_to_each(self, notice: Callable[[bool], Notice]) -> None:
        """Send accepted gateways a notice that depends on whether they share memory."""
        for session, link in self._links.items():
            link.send(notice(session.shares))

    def greet_again(self) -> None:
        """Send all accepted gateways the current notices."""
        for session, link in self._links.items():
            self._greet(session, link)

    def announce_leaving(self) -> None:
        """Announce the shutdown; gateways keep new requests for the next scheduler."""
        self._leaving = True
        for link in self._links.values():
            link.send(_LEAVING, at_once=True)

    async def close(self, limit_s: float) -> None:
        """Send all buffered items, for at most limit_s seconds; then close all links."""
        links = list(self._links.values())
        if links:
            drains = [asyncio.ensure_future(link.drain()) for link in links]
            _, stuck = await asyncio.wait(drains, timeout=limit_s)
            for drain in stuck:
                drain.cancel()
        for link in links:
            link.close()

    def _add(self, session: GatewaySession, link: Link[FromScheduler]) -> None:
        session.link = link
        self._links[session] = link
        self._greet(session, link)

    def _greet(self, session: GatewaySession, link: Link[FromScheduler]) -> None:
        for notice in self._notices(session.shares):
            link.send(notice)
        if self._leaving:
            link.send(_LEAVING)

    def _on_down(self, session: GatewaySession) -> None:
        self._links.pop(session, None)
        session.on_down()
