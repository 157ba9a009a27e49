import json
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2
from nereid_adopt.calls.regions import Regions
from nereid_adopt.calls.requests import RegionRange, RequestFacts
from nereid_adopt.calls.traffic import Side

_REGISTER = b"/v2/systemsharedmemory/region/r/register"
_BOTH = frozenset(Side)
_SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
def regions(tmp_path: Path) -> Regions:
    (tmp_path / "key").write_bytes(bytes(range(16)))
    return Regions(tmp_path)


def register(regions: Regions, key: str = "/key", byte_size: int = 8, offset: int = 4) -> None:
    document = {"key": key, "offset": offset, "byte_size": byte_size}
    regions.on_http_change(_REGISTER, json.dumps(document).encode(), _BOTH)


def read(regions: Regions, offset: int = 2, byte_size: int = 3) -> dict[str, bytes] | None:
    return regions.read({"x": RegionRange("r", offset, byte_size)})


def test_ranges_are_read_again_each_time(regions: Regions, tmp_path: Path) -> None:
    register(regions)
    assert read(regions) == {"x": bytes([6, 7, 8])}
    (tmp_path / "key").write_bytes(bytes(16))
    assert read(regions) == {"x": bytes(3)}
    regions.close()
    assert read(regions) is None


def test_grpc_registers_and_unregisters_as_well(regions: Regions) -> None:
    message = kserve_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/key", byte_size=8)
    regions.on_grpc_change(
        f"{_SERVICE}SystemSharedMemoryRegister", message.SerializeToString(), _BOTH
    )
    assert read(regions) == {"x": bytes([2, 3, 4])}
    regions.on_grpc_change(f"{_SERVICE}LogSettings", b"", _BOTH)
    gone = kserve_pb2.SystemSharedMemoryUnregisterRequest(name="r").SerializeToString()
    regions.on_grpc_change(f"{_SERVICE}SystemSharedMemoryUnregister", gone, _BOTH)
    assert read(regions) is None


def test_http_unregisters_one_or_all(regions: Regions) -> None:
    register(regions)
    regions.on_http_change(b"/v2/systemsharedmemory/region/other/unregister", b"", _BOTH)
    assert read(regions) is not None
    regions.on_http_change(b"/v2/systemsharedmemory/region/r/unregister", b"", _BOTH)
    assert read(regions) is None
    register(regions)
    assert read(regions) is not None
    regions.on_http_change(b"/v2/systemsharedmemory/unregister", b"", _BOTH)
    assert read(regions) is None


@pytest.mark.parametrize("key", ["/missing", "", "/", "/..", "/../key", "/a/key"])
def test_keys_that_are_no_region_are_not_read(regions: Regions, key: str) -> None:
    register(regions, key)
    assert read(regions) is None


@pytest.mark.parametrize(("offset", "byte_size"), [(-1, 2), (2, -1), (6, 3)])
def test_ranges_outside_of_the_region_are_not_read(
    regions: Regions, offset: int, byte_size: int
) -> None:
    register(regions)
    assert read(regions, offset, byte_size) is None


def test_a_region_that_was_shortened_is_not_read(regions: Regions, tmp_path: Path) -> None:
    register(regions)
    assert read(regions) is not None
    (tmp_path / "key").write_bytes(b"")
    assert read(regions) is None


def test_other_calls_and_damaged_ones_change_nothing(regions: Regions) -> None:
    regions.on_http_change(b"/v2/logging", b"{}", _BOTH)
    regions.on_http_change(_REGISTER, b"{}", _BOTH)
    regions.on_http_change(_REGISTER, b"[", _BOTH)
    regions.on_grpc_change(f"{_SERVICE}SystemSharedMemoryRegister", b"\xff", _BOTH)
    assert read(regions) is None


def test_the_number_of_regions_is_bounded(regions: Regions, tmp_path: Path) -> None:
    regions = Regions(tmp_path, max_regions=0)
    register(regions)
    assert read(regions) is None


def test_requests_go_to_servers_that_have_their_regions(regions: Regions) -> None:
    facts = RequestFacts(input_ranges={"x": RegionRange("r", 0, 1)})
    # Registered before the proxy came.
    assert [regions.are_at(side, facts) for side in Side] == [True, False]
    register(regions)
    assert [regions.are_at(side, facts) for side in Side] == [True, True]
    document = json.dumps({"key": "/key", "byte_size": 8}).encode()
    regions.on_http_change(_REGISTER, document, frozenset({Side.NEW}))
    assert [regions.are_at(side, facts) for side in Side] == [False, True]
    assert regions.are_at(Side.NEW, RequestFacts())
