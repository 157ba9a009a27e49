"""The table of clients' regions: registering, ranges, use by requests."""

import asyncio
from typing import Any

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors.region_ranges import RegionRange, RegionRanges
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.plane.client_shm.regions import (
    CUDA,
    MAX_REGIONS,
    SYSTEM,
    Regions,
    Registration,
)


class Bytes:
    """Memory of this process."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.closed = False

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self.data[offset : offset + size_bytes])

    def write(self, offset: int, data: Any) -> bool:
        if offset + len(data) > len(self.data):
            return False
        self.data[offset : offset + len(data)] = data
        return True

    def close(self) -> None:
        self.closed = True


RESERVED = "triton_python_backend_shm_region_"


def system(name: str, key: str = "", size_bytes: int = 8) -> Registration:
    return Registration(SYSTEM, name, size_bytes, key or name, 0)


def filled(*names: str, max_regions: int = MAX_REGIONS) -> tuple[Regions, dict[str, Bytes]]:
    regions, memories = Regions(allowed=True, max_regions=max_regions), {}
    for name in names:
        memories[name] = memory = Bytes(b"01234567")
        regions.register(system(name), lambda memory=memory: memory)  # type: ignore[misc]
    return regions, memories


def test_ranges_lie_inside_their_region() -> None:
    regions, _ = filled("r")
    for tensor_range, code in (
        (RegionRange("r", 0, 8), 0),
        (RegionRange("r", 7, 1), 0),
        (RegionRange("r", 4, 0), 0),
        (RegionRange("r", 0, 0), 3),
        (RegionRange("r", 0, 9), 3),
        (RegionRange("r", 7, 2), 3),
        (RegionRange("r", 7, 2**64 - 3), 3),
        (RegionRange("r", 8, 0), 3),
        (RegionRange("r", 2**64 - 1, 2), 3),
        (RegionRange("s", 0, 1), 5),
        (RegionRange("", 0, 1), 5),
    ):
        if not code:
            assert regions.find_region(tensor_range).registration.name == "r"
            continue
        with pytest.raises(NereidError) as caught:
            regions.find_region(tensor_range)
        assert caught.value.code == code, tensor_range


def test_what_cannot_be_registered() -> None:
    regions, _ = filled("r")
    for registration, code in (
        (system("r", "other"), 6),
        (Registration(CUDA, "r", 8), 6),
    ):
        with pytest.raises(NereidError) as caught:
            regions.register(registration, lambda: pytest.fail("opened"))
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", " - invalid shm key ''"),
        ("//", " - invalid shm key '//'"),
        (
            f"/{RESERVED}1",
            f" with key '/{RESERVED}1' as the key contains the reserved prefix '{RESERVED}'",
        ),
    ],
)
def test_reserved_and_empty_keys_are_refused(key: str, text: str) -> None:
    regions, _ = filled("r")
    # As on Triton, the key is checked before the name.
    with pytest.raises(NereidError) as caught:
        regions.register(Registration(SYSTEM, "r", 8, key), lambda: pytest.fail("opened"))
    assert caught.value.code == 3
    assert str(caught.value) == f"cannot register shared memory region 'r'{text}"


def test_the_table_is_bounded() -> None:
    regions, _ = filled("a", "b", max_regions=2)
    with pytest.raises(NereidError) as caught:
        regions.register(system("c"), lambda: Bytes(b""))
    assert caught.value.code == 14
    regions.unregister(SYSTEM, "a")
    regions.register(system("c"), lambda: Bytes(b""))


def test_nothing_is_registered_when_memory_cannot_be_opened() -> None:
    def refuse() -> Bytes:
        raise Internal("no")

    regions = Regions(allowed=True)
    with pytest.raises(NereidError, match="no"):
        regions.register(system("r"), refuse)
    assert regions.status(SYSTEM, "") == []


def test_status_lists_one_kind() -> None:
    regions, _ = filled("b", "a")
    cuda = Registration(CUDA, "c", 8, device_id=1)
    regions.register(cuda, lambda: Bytes(b""))
    assert [each.name for each in regions.status(SYSTEM, "")] == ["a", "b"]
    assert regions.status(CUDA, "") == regions.status(CUDA, "c") == [cuda]
    for kind, name in ((SYSTEM, "c"), (CUDA, "a"), (SYSTEM, "x"), (CUDA, "x")):
        with pytest.raises(NereidError):
            regions.status(kind, name)


def test_unregistering_one_all_and_none() -> None:
    regions, memories = filled("a", "b", "c")
    cuda = Bytes(b"")
    regions.register(Registration(CUDA, "d", 8), lambda: cuda)
    for kind, name, left in (
        (SYSTEM, "x", ["a", "b", "c"]),
        (CUDA, "a", ["a", "b", "c"]),
        (SYSTEM, "a", ["b", "c"]),
        (CUDA, "", ["b", "c"]),
        (SYSTEM, "", []),
    ):
        regions.unregister(kind, name)
        assert [each.name for each in regions.status(SYSTEM, "")] == left
    assert cuda.closed
    assert all(memory.closed for memory in memories.values())


def test_a_region_in_use_is_unregistered_after_its_last_request() -> None:
    regions, memories = filled("c", "a", "b")
    used = [regions.find_region(RegionRange(name, 0, 1)) for name in "aac"]
    for region in used:
        region.begin_use()
    # Of another kind there is none of that name.
    regions.unregister(CUDA, "a")
    used[0].end_use()
    regions.unregister(SYSTEM, "a")
    regions.unregister(SYSTEM, "")
    assert [each.name for each in regions.status(SYSTEM, "")] == ["a", "c"]
    # Requests may still name it, and no other region has its name yet.
    assert regions.find_region(RegionRange("a", 0, 1)) is used[0]
    with pytest.raises(NereidError):
        regions.register(system("a"), lambda: Bytes(b""))
    used[0].end_use()
    assert [each.name for each in regions.status(SYSTEM, "")] == ["c"]
    assert [memories[name].closed for name in "abc"] == [True, True, False]
    regions.close()
    used[2].end_use()


def test_a_range_past_what_64_bits_count_says_so() -> None:
    regions, _ = filled("r")
    with pytest.raises(InvalidArgument) as caught:
        regions.find_region(RegionRange("r", 7, 2**64 - 3))
    assert caught.value.message == (
        "Integer overflow detected: byte_size (18446744073709551613) + offset (7) exceeds maximum"
        " value (18446744073709551615) for region 'r'"
    )


def test_inputs_are_copied_and_outputs_placed() -> None:
    regions, memories = filled("r")
    request = ClientRequest(0, b"", [b"", b"inline"])
    regions.resolve_ranges(
        request, RegionRanges(((0, RegionRange("r", 2, 3)),), (("O", RegionRange("r", 4, 4)),))
    )
    memories["r"].data[:] = bytes(8)
    assert request.payloads == [b"234", b"inline"]
    ((name, region, tensor_range),) = request.region_use.placements
    assert request.region_use.regions == [region, region]
    assert region.registration.name == "r"
    assert (name, tensor_range) == ("O", RegionRange("r", 4, 4))


def test_memory_that_shrank_is_an_error() -> None:
    regions, memories = filled("r")
    tensor_range = RegionRange("r", 4, 4)
    region = regions.find_region(tensor_range)
    region.write(tensor_range, b"abcd")
    del memories["r"].data[6:]
    for attempt in (lambda: region.read(tensor_range), lambda: region.write(tensor_range, b"abcd")):
        with pytest.raises(NereidError, match=r"Invalid offset \+ byte size"):
            attempt()


def test_nothing_is_registered_or_found_where_it_is_not_allowed() -> None:
    regions = Regions(allowed=False)
    assert regions.status(SYSTEM, "") == []
    regions.unregister(SYSTEM, "r")
    for attempt in (
        lambda: regions.register(system("r"), lambda: Bytes(b"")),
        lambda: regions.find_region(RegionRange("r", 0, 1)),
    ):
        with pytest.raises(NereidError, match="Client shared memory is disabled") as caught:
            attempt()
        assert caught.value.code == 12


async def test_large_inputs_are_read_before_they_are_resolved() -> None:
    size = (1 << 20) + 1
    regions = Regions(allowed=True, max_request_bytes=size)
    regions.register(Registration(SYSTEM, "r", 2 * size, "k"), lambda: Bytes(bytes(2 * size)))
    named = RegionRanges(((0, RegionRange("r", 0, size)),), ())
    request = ClientRequest(0, b"", [b""])
    assert not regions.resolve_ranges(request, named)
    held: list[int] = []
    tensors = TensorMemory(0)
    reading = asyncio.ensure_future(regions.read(request, named, tensors, held.append))
    await asyncio.sleep(0)
    regions.unregister(SYSTEM, "r")
    assert regions.status(SYSTEM, "r")
    await reading
    assert held == [size]
    assert request.payloads == [bytes(size)]
    assert regions.status(SYSTEM, "") == []
    with pytest.raises(NereidError, match="Unable to find"):
        await regions.read(request, named, tensors, held.append)
    regions.close()


def test_inputs_larger_than_a_request_may_have_are_not_read() -> None:
    regions = Regions(allowed=True, max_request_bytes=2 << 20)
    regions.register(Registration(SYSTEM, "r", 1 << 40, "k"), lambda: Bytes(b""))
    ranges = tuple((position, RegionRange("r", 0, 1 << 20)) for position in range(3))
    with pytest.raises(NereidError, match="inputs of 3145728 bytes in shared memory are more than"):
        regions.resolve_ranges(ClientRequest(0, b"", [b""] * 3), RegionRanges(ranges, ()))
