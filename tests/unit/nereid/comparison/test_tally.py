import json
from typing import Any

import numpy as np

from nereid.comparison.checkpoint import Checkpoint
from nereid.comparison.responses import Exchange, Response, Tensor
from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import Redaction, Tally, TallyOptions, text_report

ELEMENT = "element 0: 1.0 -> {:.1f}, 1 of 1 elements beyond absolute=0.5 relative=0"
RULES = parse_rules("*: absolute=0.5")


def fp32(value: float) -> Tensor:
    return Tensor("FP32", (1,), np.array([value], "<f4").tobytes())


def exchange(old: float, new: float, model: str = "m", **fields: Any) -> Exchange:
    inputs = {"x": fp32(old)}
    return Exchange(
        model, inputs, [Response({"y": fp32(old)})], [Response({"y": fp32(new)})], **fields
    )


def differences(tally: Tally) -> Any:
    return tally.document()["models"][0]["differences"]


def test_exchanges_are_counted_by_model_and_kind() -> None:
    tally = Tally(RULES)
    assert tally.add(exchange(1, 1.25)) == []
    assert len(tally.add(exchange(1, 3))) == 1
    tally.add(exchange(1, 2, model="n"))
    tally.add_not_compared("n", "the queue was full", 3)
    document = json.loads(json.dumps(tally.document()))
    assert (document["compared"], document["differing"]) == (3, 2)
    assert document["not_compared"] == {"the queue was full": 3}
    assert [(model["name"], model["compared"]) for model in document["models"]] == [
        ("m", 2),
        ("n", 1),
    ]
    assert tally.totals("m") == (2, 1)
    assert tally.totals("unknown") == (0, 0)


def test_the_worst_examples_are_kept() -> None:
    tally = Tally(RULES, TallyOptions(max_examples=2))
    for new in (2.0, 9.0, 3.0, 2.0):
        tally.add(exchange(1, new, request_id=f"r{new:g}"))
    [found] = differences(tally)
    assert (found["count"], found["worst"]) == (4, 8.0)
    assert [example["request_id"] for example in found["examples"]] == ["r9", "r3"]
    assert found["examples"][0]["inputs"]["x"]["base64"] == "AACAPw=="


def test_no_example_is_kept_if_none_is_wanted() -> None:
    tally = Tally(RULES, TallyOptions(max_examples=0))
    tally.add(exchange(1, 2))
    assert differences(tally)[0]["examples"] == []


def test_inputs_are_redacted() -> None:
    for redaction, keys in (
        (Redaction.DIGEST, {"datatype", "shape", "sha256"}),
        (Redaction.OMIT, {"datatype", "shape"}),
    ):
        tally = Tally(RULES, TallyOptions(redaction=redaction))
        tally.add(exchange(1, 2))
        assert differences(tally)[0]["examples"][0]["inputs"]["x"].keys() == keys


def test_inputs_beyond_the_bytes_become_digests() -> None:
    tally = Tally(RULES, TallyOptions(max_example_bytes=4))
    tally.add(exchange(1, 2))
    tally.add(exchange(1, 3))
    kinds = [example["inputs"]["x"].keys() for example in differences(tally)[0]["examples"]]
    assert ["base64" in keys for keys in kinds] == [False, True]


def test_names_are_bounded() -> None:
    tally = Tally(RULES)
    for index in range(2100):
        tally.add(exchange(1, 2, model=f"m{index}"))
    names = [model["name"] for model in tally.document()["models"]]
    assert len(names) == 2001
    assert "(other)" in names


def test_another_tally_goes_on_with_the_last_parts_of_checkpoints() -> None:
    options = TallyOptions(max_examples=2, max_example_bytes=12)
    whole, current, kept = Tally(RULES, options), Tally(RULES, options), Checkpoint({}, {})
    for number, new in enumerate((2.0, 1.0, 9.0, 3.0, float("inf"), 4.0, 1.5)):
        for model in ("m", f"m{number}"):
            for tally in (whole, current):
                tally.add(exchange(1, new, model, old_latency_s=0.1 * number, request_id=model))
                tally.add_not_compared("n", "too large")
        current.settled["m"] += 1
        if number != 3:
            checkpoint = current.take_checkpoint()
            kept.parts.update(checkpoint.parts)
            assert checkpoint.settled == {"m": 2 if number == 4 else 1}
            current = Tally(RULES, options)
            current.restore(kept.parts)
            assert current.take_checkpoint() == Checkpoint({}, {})
    assert current.document() == whole.document()


def test_examples_are_kept_again_only_when_they_have_changed() -> None:
    tally = Tally(RULES, TallyOptions(max_examples=1))
    key = "value", "y"
    tally.add(exchange(1, 3))
    parts = {("model", "m"), ("count", "m", *key), ("examples", "m", *key)}
    assert tally.take_checkpoint().parts.keys() == parts
    tally.add(exchange(1, 2))
    assert tally.take_checkpoint().parts.keys() == parts - {("examples", "m", *key)}


def test_what_clients_choose_is_bounded() -> None:
    tally = Tally(RULES)
    long = "x" * 10_000
    inputs = {f"{number}{long}": fp32(1) for number in range(1000)}
    old, new = (Response({long: fp32(value)}) for value in (1, 2))
    tally.add(Exchange(long, inputs, [old], [new], request_id=long))
    assert len(json.dumps(tally.document())) < 50_000
    [difference] = differences(tally)
    assert difference["name"] == tally.document()["models"][0]["name"] == "(other)"


def test_the_report_is_text_as_well() -> None:
    tally = Tally(RULES)
    for _ in range(100):
        tally.add(exchange(1, 1, old_latency_s=0.001, new_latency_s=0.002))
    tally.add(exchange(1, float("inf"), request_id="a"))
    tally.add(exchange(1, 3, model="n"))
    tally.add_not_compared("n", "too large")
    assert text_report(tally.document()).splitlines() == [
        "m: 101 compared, 1 differ",
        "  latency: p50 0.977 -> 1.95 ms, p99 0.977 -> 1.95 ms",
        "  value of y: 1, worst infinite",
        f"    a: {ELEMENT.format(float('inf'))}",
        "n: 1 compared, 1 differ, not compared: 1 too large",
        "  value of y: 1, worst 2",
        f"    a request without id: {ELEMENT.format(3)}",
        "total: 102 compared, 2 differ, not compared: 1 too large",
    ]
