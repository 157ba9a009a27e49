"""The keys of requests, and which requests share one."""

import pytest

from nereid.core.tensors.digest import DIGEST_BYTES
from nereid.core.wire.messages import CLASSIFICATION, InferRequest
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_scheduler.versions.caching.cache_keys import CacheKeys
from tests.support.scheduler.cache_site import SECRETS
from tests.support.scheduler.samples import head_of

INPUTS = [("I", "UINT8", [3])]


def request(*outputs: str, **classes: int) -> InferRequest:
    message = kserve_pb2.ModelInferRequest.FromString(head_of(INPUTS, outputs))
    for output in message.outputs:
        if output.name in classes:
            output.parameters[CLASSIFICATION].int64_param = classes[output.name]
    return InferRequest(1, message.SerializeToString(), [b"abc"])


KEYS = CacheKeys(["O", "P"], SECRETS)


@pytest.mark.parametrize("outputs", [("O", "P"), ("P", "O"), ("O", "P", "O")])
def test_all_outputs_by_name_are_all_outputs(outputs: tuple[str, ...]) -> None:
    assert KEYS.key(request(*outputs)) == KEYS.key(request())


def test_other_outputs_or_classes_have_other_keys() -> None:
    requests = [
        request(),
        request("O"),
        request("P"),
        request("O", O=1),
        request("O", O=2),
        request("O", "P", O=1),
        request("O", "P", P=1),
    ]
    assert len({KEYS.key(each) for each in requests}) == len(requests)
    assert KEYS.key(request("O")) == KEYS.key(request("O", "O"))


def test_the_scope_names_model_version_and_revision() -> None:
    scopes = [("m", 1, b"r"), ("m", 11, b"r"), ("m1", 1, b"r"), ("m", 1, b"1r"), ("n", 1, b"r")]
    assert len({KEYS.scope(*scope) for scope in scopes}) == len(scopes)
    assert KEYS.scope("m", 1, b"r") == CacheKeys([], SECRETS).scope("m", 1, b"r")


def test_keys_are_of_digests_alone() -> None:
    key = KEYS.scope("name", 1, b"r") + KEYS.key(request("O"))
    assert len(key) == 3 * DIGEST_BYTES
    assert b"name" not in key


def test_a_digest_of_another_length_is_made_anew() -> None:
    first = request()
    first.digest = b"x" * 16
    assert KEYS.key(first) == KEYS.key(request())


def test_a_digest_from_the_gateway_equals_the_one_made_here() -> None:
    first = request("O")
    key = KEYS.key(first)
    assert len(first.digest) == DIGEST_BYTES
    again = request("O")
    again.digest, again.payloads = first.digest, []
    assert KEYS.key(again) == key


def test_tensors_in_shared_memory_are_digested_by_their_bytes() -> None:
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(100)
    assert segment is not None
    segment.view[8:11] = b"abc"
    shared = request()
    shared.payloads = [segment.range(8, 3)]
    assert KEYS.key(shared) == KEYS.key(request())
    segments.discard(segment.name)
    for lost in (segment.range(8, 3), SharedMemory("0.0.0", 0, 3)):
        shared = request()
        shared.payloads = [lost]
        assert KEYS.key(shared) == b""


def test_the_table_of_heads_is_bounded() -> None:
    keys = CacheKeys(["O"], SECRETS, max_heads=2)
    for size in range(5):
        head = head_of([("I", "UINT8", [size])])
        assert keys.key(InferRequest(1, head, [b"a" * size]))
    assert len(keys._heads) <= 2


def test_clients_of_other_rights_share_no_key() -> None:
    requests = [request("O"), request("O"), request("O"), request()]
    for each, rights in zip(requests, (b"", b'[["a"]]', b'[["b"]]', b'[["a"]]'), strict=True):
        each.callable_models = rights
    assert len({KEYS.key(each) for each in requests}) == 4
    assert KEYS.key(requests[1]) == KEYS.key(requests[1])
