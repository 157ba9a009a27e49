"""Requests of clients, as decoder processes return them."""

import pickle

from nereid.core.wire.messages import ErrorStatus
from nereid_gateway.core.client_request import ClientRequest


def test_a_pickled_request_has_all_that_a_decoder_process_sets() -> None:
    request = ClientRequest(
        0, b"head", [b"a", b"b"], "id", {"x": 1}, 2, 3, error_status=ErrorStatus(3, "wrong")
    )
    request.wants_empty_final = True
    copied = pickle.loads(pickle.dumps(request))
    assert type(copied) is ClientRequest
    for name in (name for name in dir(request) if name[0] != "_"):
        assert getattr(copied, name) == getattr(request, name), name
    assert copied.sender is None
