"""How much there is of a resource, in flags and by default, and what is refused."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import ResourceNeed
from nereid_scheduler.core.resources import (
    Device,
    Pool,
    ResourceLimit,
    Resources,
    pools_of,
)

HERE, THERE, OTHER_GPU = Device("h", 0), Device("i", 0), Device("h", 1)
FORMAT = (
    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or"
    " '<resource_name>:<count>'. Got "
)


def need(count: int, name: str = "R", *, everywhere: bool = False) -> ResourceNeed:
    return ResourceNeed(name, everywhere, count)


def limited(*texts: str) -> Resources:
    return Resources(map(ResourceLimit.parse, texts))


def refusal(resources: Resources, *needs: ResourceNeed, device: Device = HERE) -> str:
    try:
        resources.require(needs, device)
    except InvalidArgument as error:
        return error.message
    return ""


def too_few(limit: int, least: int) -> str:
    return (
        f'Resource count for "R" is limited to {limit} which will prevent scheduling of one or'
        f" more model instances, the minimum required count is {least}"
    )


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("R:4", ResourceLimit("R", 4, -1)),
        ("R:4:2", ResourceLimit("R", 4, 2)),
        ("R: 4x:1y", ResourceLimit("R", 4, 1)),
        (":-1:-7", ResourceLimit("", -1, -7)),
    ],
)
def test_flags_are_read_as_tritonserver_reads_them(text: str, limit: ResourceLimit) -> None:
    assert ResourceLimit.parse(text) == limit
    assert ResourceLimit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FORMAT),
        ("R", FORMAT + "R"),
        ("R:1:0:0", FORMAT + "R:1:0:0"),
        ("R:", "Invalid option value. Got "),
        ("R:4:GLOBAL", "Invalid option value. Got GLOBAL"),
        ("R:2147483648", "Provided option value is out of bound. Got 2147483648"),
    ],
)
def test_flags_are_refused_in_tritonservers_words(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=r"^[-IP]") as raised:
        ResourceLimit.parse(text)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("flags", "asked", "device", "error"),
    [
        ((), need(99), HERE, ""),
        (("R:3",), need(4), HERE, too_few(3, 4)),
        (("R:3:0",), need(4), HERE, too_few(3, 4)),
        (("R:4:1",), need(4), HERE, too_few(0, 4)),
        (("R:4:1",), need(4), OTHER_GPU, ""),
        (("R:2", "R:5:0"), need(4), HERE, ""),
        (("R:5", "R:2:0"), need(4), HERE, ""),
        (("R:5", "R:2"), need(4), HERE, too_few(2, 4)),
        (("R:-1",), need(4), HERE, ""),
        (("S:9",), need(4), HERE, too_few(0, 4)),
        (("r:9",), need(4), HERE, too_few(0, 4)),
        (("R:2:7", "R:1"), need(3, everywhere=True), HERE, too_few(2, 3)),
        (("R:3:-2",), need(3, everywhere=True), HERE, ""),
        (("S:9",), need(3, everywhere=True), HERE, too_few(0, 3)),
        (("S:9",), need(0), HERE, ""),
    ],
)
def test_what_could_never_run_is_refused(
    flags: tuple[str, ...], asked: ResourceNeed, device: Device, error: str
) -> None:
    assert refusal(limited(*flags), asked, device=device) == error


def test_a_resource_is_either_global_or_of_devices() -> None:
    text = 'Resource "R" is present as both global and device-specific resource in the model'
    resources = Resources()
    assert refusal(resources, need(1), need(1, everywhere=True)).startswith(text)
    pools = pools_of([need(1)], HERE)
    resources.add_user(pools)
    assert refusal(resources, need(1, everywhere=True)).startswith(text)
    assert not refusal(resources, need(1))
    resources.remove_user(pools)
    assert not refusal(resources, need(1, everywhere=True))


def test_by_default_there_is_what_the_neediest_needs() -> None:
    resources = Resources()
    small, large = pools_of([need(2)], HERE), pools_of([need(5)], HERE)
    for pools in (small, large, large, pools_of([need(7)], THERE)):
        resources.add_user(pools)
    assert resources.capacity(Pool("R", HERE)) == 5
    resources.remove_user(large)
    assert resources.capacity(Pool("R", HERE)) == 5
    resources.remove_user(large)
    assert resources.capacity(Pool("R", HERE)) == 2
    resources.remove_user(small)
    assert resources.capacity(Pool("R", HERE)) == 0
    assert resources.capacity(Pool("R", THERE)) == 7


def test_of_equal_names_the_last_counts() -> None:
    assert pools_of([need(2), need(1), need(0, "S")], HERE) == {Pool("R", HERE): 1}
