"""Which version executes a request that names none, once a model's traffic has weights."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.traffic.caller_keys import key_of, source_tag
from nereid.core.traffic.weights import Traffic, make_traffic
from nereid.core.wire.messages import InferRequest
from nereid.shm.segments import SegmentPool
from nereid_gateway.core.access.caller_keys import CallerKeys
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import HeadReader
from nereid_scheduler.core.models.text_files import NO_TEXT_FILES, TextFiles
from nereid_scheduler.core.models.traffic_table import FileSetting, TrafficSetting
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
from nereid_scheduler.placement.models.traffic_split import find_split
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import (
    TENSORS,
    add_instance,
    request,
    served_model,
    served_version,
)

CALLERS = 2000
SEQUENCES = """
sequence_batching {}
"""


def version(number: int, state: str = "ready", text: str = "", **rest: Any) -> ServedVersion:
    runtime = ModelVersion(model_of(TENSORS + text), number, VersionContext(QueueLimits(0)))
    return served_version(number=number, state=state, runtime=runtime, **rest)


class Site:
    """A catalogue with a model m, and its traffic."""

    def __init__(self, traffic: Traffic | None, *versions: ServedVersion) -> None:
        self.catalogue = Catalogue([served_model("m", *versions)])
        self.set(traffic)

    def set(self, traffic: Traffic | None) -> None:
        table = self.catalogue.traffic
        table.apply("m", table.next_setting("m", traffic, 1))

    def choose(self, one: InferRequest) -> int:
        split = find_split(self.catalogue, "m")
        assert split is not None
        return split.choose(one).number

    def chosen(self, count: int = CALLERS) -> list[int]:
        split = find_split(self.catalogue, "m")
        assert split is not None
        return [split.choose(request(number)).number for number in range(1, count + 1)]


def by_header(text: str = "header:x-user", **weights: int) -> Traffic:
    return make_traffic({int(each[1:]): weight for each, weight in weights.items()}, text)


def keyed(by: str, value: str | None) -> InferRequest:
    tag = source_tag(by)
    return request(1, caller_key=tag if value is None else tag + key_of(value.encode()))


async def test_without_traffic_nothing_is_chosen() -> None:
    site = Site(None, version(1), version(2))
    assert find_split(site.catalogue, "m") is None
    assert find_split(site.catalogue, "other") is None


async def test_requests_on_their_own_are_divided_and_keep_their_version_when_sent_again() -> None:
    site = Site(make_traffic({1: 3, 2: 1}), version(1), version(2), version(3))
    first = site.chosen()
    assert set(first) == {1, 2}
    assert Counter(first)[2] / CALLERS == pytest.approx(0.25, abs=0.04)
    assert site.chosen() == first


async def test_a_version_that_is_not_ready_gets_none_and_nobody_else_moves() -> None:
    weights = make_traffic({1: 2, 2: 1, 3: 1})
    before = Site(weights, version(1), version(2), version(3)).chosen()
    for state in ("failed", "unloading", "unloaded"):
        after = Site(weights, version(1), version(2), version(3, state)).chosen()
        assert all(was in (3, now) for was, now in zip(before, after, strict=True))
        assert set(after) == {1, 2}


async def test_a_first_load_is_waited_for_and_an_added_version_is_not() -> None:
    weights = make_traffic({1: 1, 2: 1})
    before = Site(weights, version(1), version(2)).chosen()
    assert Site(weights, version(1), version(2, "loading")).chosen() == before
    assert set(Site(weights, version(1), version(2, "loading", is_addition=True)).chosen()) == {1}
    site = Site(weights, version(1), version(2, "loading"))
    failed_before = version(2, "loading", first_load_ended=True)
    assert set(Site(weights, version(1), failed_before).chosen()) == {1}
    split = find_split(site.catalogue, "m", may_wait=False)
    assert split is not None
    assert split.choose(request(1)).number == 1
    assert not split.waits


async def test_without_a_weighted_version_the_latest_that_is_not_excluded_counts() -> None:
    site = Site(make_traffic({1: 1, 5: 0}), version(2), version(4), version(5))
    assert set(site.chosen(10)) == {4}
    with pytest.raises(Unavailable, match="no version of model 'm' that its traffic goes to"):
        Site(make_traffic({1: 1, 5: 0}), version(5)).chosen(1)


async def test_a_header_keeps_callers_together_and_those_without_it_are_on_their_own() -> None:
    site = Site(by_header(v1=1, v2=1), version(1), version(2))
    users = [site.choose(keyed("header:x-user", f"u{number}")) for number in range(100)]
    again = [site.choose(keyed("header:x-user", f"u{number}")) for number in range(100)]
    assert users == again
    assert set(users) == {1, 2}
    split = find_split(site.catalogue, "m")
    assert split is not None
    alone = {
        split.choose(request(number, caller_key=source_tag("header:x-user"))).number
        for number in range(1, 50)
    }
    assert alone == {1, 2}


@pytest.mark.parametrize("users", [500, pytest.param(100_000, marks=pytest.mark.nightly)])
async def test_gateways_and_schedulers_agree_without_asking_each_other(users: int) -> None:
    traffic = by_header(v1=70, v2=30)
    catalogues = [Site(traffic, version(1), version(2)).catalogue for _ in range(2)]
    splits = [split for each in catalogues if (split := find_split(each, "m")) is not None]
    gateways = [CallerKeys({"m": "header:x-user"}, HeadReader()) for _ in range(2)]
    counts: Counter[int] = Counter()
    for number in range(users):
        chosen = set()
        for gateway in gateways:
            sent = ClientRequest(number + 1, request(1).head, [b"x"])
            sent.headers = {b"x-user": b"user %d" % number}
            sent.caller_key = gateway.read(sent)
            chosen |= {split.choose(sent).number for split in splits}
        assert len(chosen) == 1
        counts.update(chosen)
    assert counts[2] / users == pytest.approx(0.3, abs=0.01 if users > 10_000 else 0.06)


async def test_requests_before_the_notice_go_where_they_went_before() -> None:
    site = Site(by_header(v1=1, v2=1), version(1), version(2), version(3))
    untagged = [request(number) for number in range(1, 50)]
    site.catalogue.traffic.remember_before("m", None)
    assert {site.choose(each) for each in untagged} == {3}
    site.catalogue.traffic.remember_before("m", make_traffic({2: 1}))
    assert {site.choose(each) for each in untagged} == {2}
    older = by_header("header:old", v3=1, v1=1)
    site.catalogue.traffic.remember_before("m", older)
    old = [keyed("header:old", f"u{number}") for number in range(50)]
    assert {site.choose(each) for each in old} == {1, 3}
    assert {site.choose(each) for each in untagged} == {1, 3}
    # A gateway that knows the source is not held back.
    assert {site.choose(keyed("header:x-user", f"u{n}")) for n in range(50)} == {1, 2}


async def test_requests_of_a_gateway_that_sends_no_keys_are_divided() -> None:
    site = Site(by_header(v1=1, v2=1), version(1), version(2), version(3))
    assert {site.choose(request(number)) for number in range(1, 50)} == {1, 2}


async def test_calls_of_models_are_on_their_own_unless_they_have_a_key() -> None:
    site = Site(by_header(v1=1, v2=1), version(1), version(2), version(3))
    site.catalogue.traffic.remember_before("m", None)
    calls = {site.choose(request(number, caller=7)) for number in range(1, 50)}
    assert calls == {1, 2}


@pytest.mark.parametrize("by", ["parameter:p", "sequence"])
async def test_parameters_and_correlation_ids_keep_callers_together(by: str) -> None:
    site = Site(by_header(by, v1=1, v2=1), version(1), version(2))
    name = by.removeprefix("parameter:") if ":" in by else "sequence_id"

    def of(value: Any) -> list[int]:
        return [site.choose(request(n, parameters={name: value})) for n in range(1, 20)]

    chosen = [of(value) for value in (*range(1, 20), "a")]
    assert all(len(set(each)) == 1 for each in chosen)
    assert {each[0] for each in chosen} == {1, 2}
    # No value, no sequence: on their own.
    assert {site.choose(request(number, parameters={"q": 1})) for number in range(1, 50)} == {1, 2}
    assert set(of(0)) == ({1, 2} if by == "sequence" else set(of(0)))


async def test_a_tensor_keeps_callers_together_inline_and_in_shared_memory() -> None:
    site = Site(by_header("tensor:I", v1=1, v2=1), version(1), version(2))
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(1 << 16)
    assert segment is not None
    for value in range(20):
        one = request(1)
        one.payloads = [bytes([value])]
        segment.view[0] = value
        shared = request(2)
        shared.payloads = [segment.range(0, 1)]
        assert site.choose(one) == site.choose(shared)
    other = Site(by_header("tensor:J", v1=1, v2=1), version(1), version(2))
    assert set(other.chosen(50)) == {1, 2}
    lost = request(1)
    lost.payloads = []
    assert site.choose(lost) in {1, 2}


async def test_an_open_sequence_keeps_its_version_whatever_the_weights() -> None:
    one, two = version(1, text=SEQUENCES), version(2, text=SEQUENCES)
    for served in (one, two):
        add_instance(served.ready_runtime)
    site = Site(make_traffic({2: 1}), one, two)
    begun = {"sequence_id": 5, "sequence_start": True}
    two.ready_runtime.submit(request(1, parameters=begun), lambda _: None)
    site.set(make_traffic({1: 1, 2: 0}))
    assert site.choose(request(2, parameters={"sequence_id": 5})) == 2
    assert site.choose(request(3, parameters={"sequence_id": 6, "sequence_start": True})) == 1


async def test_texts_go_to_versions_with_the_files_that_they_were_read_with() -> None:
    files = TextFiles({"tokenizer.json": "2"}, NO_TEXT_FILES.read_file)
    one, two = version(1), version(2, text_files=files)
    site = Site(make_traffic({1: 1, 2: 1}), one, two)
    for served in (one, two):
        numbers = range(1, 30)
        chosen = {site.choose(request(n, text_digest=served.text_digest)) for n in numbers}
        assert chosen == {served.number}
    heavier = Site(make_traffic({1: 1, 2: 5}), one, two)
    split = find_split(heavier.catalogue, "m")
    assert split is not None
    assert split.heaviest is two
    nobody = find_split(Site(make_traffic({7: 1}), one).catalogue, "m")
    assert nobody is not None
    assert nobody.heaviest is None
    # Admission refuses what no version can read.
    assert {site.choose(request(n, text_digest=b"other")) for n in range(1, 30)} == {1, 2}


async def test_the_configuration_has_traffic_that_calls_and_files_replace() -> None:
    text = 'parameters { key: "traffic" value { string_value: "{\\"weights\\": {\\"1\\": 1}}" } }'
    served = version(1, text=text)
    catalogue = Catalogue([served_model("m", served)])
    catalogue.configured_traffic.add("m")
    table = catalogue.traffic

    def found() -> tuple[str, str] | None:
        each = catalogue.find_traffic("m")
        return None if each is None else (str(each.traffic), each.source)

    assert found() == ("1=1", "configuration")
    table.apply("m", TrafficSetting(make_traffic({1: 2}), 5))
    assert found() == ("1=2", "call")
    assert not table.apply("m", TrafficSetting(make_traffic({1: 3}), 5))
    table.file = {"m": FileSetting(make_traffic({1: 4}))}
    assert found() == ("1=4", "file")
    table.file = {}
    table.apply("m", table.next_setting("m", None, 1))
    assert found() == ("1=1", "configuration")
    assert table.settings["m"].set_ns == 6
    assert [(each.name, str(traffic)) for each, traffic in catalogue.models_with_traffic()] == [
        ("m", "1=1")
    ]
