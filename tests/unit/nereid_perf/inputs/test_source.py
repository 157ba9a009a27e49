"""What a worker's requests are, in order."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import InputPlan, ShapeOption
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.source import expects_outputs, make_regions, make_source
from nereid_perf.request import Request, RequestSource
from tests.support.perf_plans import (
    grpc_message,
    http_document,
    model,
    plan,
    sequence_of,
)

X = TensorSpec("X", "INT32", (1,))
WIDE = TensorSpec("X", "FP32", (-1, 2))


def requests(source: RequestSource, count: int) -> list[Request]:
    found = []
    for _ in range(count):
        request = source.next_request()
        assert request is not None
        source.on_end(request)
        found.append(request)
    return found


def json_data(path: Path, *streams: list[int] | int, **more: Any) -> str:
    """A file of one INT32 input X."""
    steps = [
        {"X": [each]} if isinstance(each, int) else [{"X": [value]} for value in each]
        for each in streams
    ]
    file = path / "data.json"
    file.write_text(json.dumps({"data": steps, **more}))
    return str(file)


def values(request: Request) -> Any:
    (raw,) = grpc_message(request).raw_input_contents
    return np.frombuffer(raw, "<i4").tolist()


def test_plain_request_is_encoded_once() -> None:
    source = make_source(plan(model(X)))
    first, second = requests(source, 2)
    assert first is second
    message = grpc_message(first)
    assert message.model_name == "m"
    assert [*message.inputs[0].shape] == [1]


def test_plans_are_picklable_and_give_each_process_the_same_data() -> None:
    made = plan(model(X), distinct_inputs=5, random_integers=(0, 1 << 30), seed=3)
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert requests(make_source(made), 5) == requests(make_source(copy), 5)
    other = pickle.loads(
        pickle.dumps(plan(model(X), distinct_inputs=5, random_integers=(0, 1 << 30)))
    )
    assert requests(make_source(made), 5) != requests(make_source(other), 5)


def test_workers_begin_at_different_steps(tmp_path: Path) -> None:
    made = plan(model(X, input_data=(json_data(tmp_path, 0, 1, 2, 3),)))
    found = [[values(each) for each in requests(make_source(made, w, 2), 4)] for w in (0, 1)]
    assert found == [[[0], [1], [2], [3]], [[2], [3], [0], [1]]]


def test_batches_are_steps_that_follow_one_another(tmp_path: Path) -> None:
    data = json_data(tmp_path, 0, 1, 2, 3, 4)
    made = plan(model(X, max_batch_size=8, batch_size=2, input_data=(data,)))
    found = requests(make_source(made), 6)
    assert [values(each) for each in found] == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 1]]
    assert [*grpc_message(found[0]).inputs[0].shape] == [2, 1]


def test_batch_of_random_tensors_has_different_ones() -> None:
    made = plan(model(X, max_batch_size=8, batch_size=3), random_integers=(0, 1 << 30))
    (request,) = requests(make_source(made), 1)
    assert len({*values(request)}) == 3


def test_batch_of_different_shapes_is_refused(tmp_path: Path) -> None:
    steps = [{"X": [0] * 2}, {"X": [0] * 4}]
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": steps}))
    made = plan(model(WIDE, max_batch_size=8, batch_size=2, input_data=(str(file),)))
    with pytest.raises(InputError, match=r"tensor 'X' .*\[1,2\] and \[2,2\].*use -b 1"):
        make_source(made)


def test_request_ids_are_of_their_own() -> None:
    made = plan(model(X), request_ids=True)
    found = [each for worker in (0, 1) for each in requests(make_source(made, worker, 2), 3)]
    assert len({each.id for each in found}) == 6
    assert all(grpc_message(each).id == each.id for each in found)
    (request,) = requests(make_source(plan(model(X), request_ids=True, protocol="http")), 1)
    assert http_document(request)[0]["id"] == request.id


def test_missing_shapes_name_input_and_flag() -> None:
    with pytest.raises(InputError, match=r"input 'X' .*--shape X:1,2"):
        make_source(plan(model(WIDE)))
    made = plan(model(WIDE, shapes=(ShapeOption("X", (3, 2)),)))
    (request,) = requests(make_source(made), 1)
    assert [*grpc_message(request).inputs[0].shape] == [3, 2]


def test_server_without_metadata_needs_datatypes() -> None:
    bare = model(shapes=(ShapeOption("A", (1, 3), "FP32"),), outputs_of_model=())
    (request,) = requests(make_source(plan(bare)), 1)
    (tensor,) = grpc_message(request).inputs
    assert (tensor.name, tensor.datatype, [*tensor.shape]) == ("A", "FP32", [1, 3])
    with pytest.raises(
        InputError, match=r"metadata of model 'm' has no inputs: .*--shape NAME:FP32"
    ):
        make_source(plan(model()))


def test_shape_tensors_are_not_made_up_and_optional_ones_left_out() -> None:
    with pytest.raises(InputError, match=r"input 'S' .* is a shape tensor: .*--input-data"):
        make_source(plan(model(TensorSpec("S", "INT32", (2,), is_shape=True))))
    optional = TensorSpec("O", "INT32", (1,), is_optional=True)
    (request,) = requests(make_source(plan(model(X, optional))), 1)
    assert [each.name for each in grpc_message(request).inputs] == ["X"]


def test_data_that_takes_too_much_is_refused_before_it_is_made() -> None:
    large = TensorSpec("X", "FP32", (1 << 18,))
    with pytest.raises(InputError, match="requests of model 'm' take 1048576000000 bytes"):
        make_source(plan(model(large), distinct_inputs=1_000_000))


def test_shape_flag_that_contradicts_the_model_is_refused_with_data_as_well(
    tmp_path: Path,
) -> None:
    shapes = (ShapeOption("X", (3,)),)
    with pytest.raises(InputError, match=r"--shape X:3 does not fit model 'm'"):
        make_source(plan(model(X, shapes=shapes, input_data=(json_data(tmp_path, 1),))))


def test_steps_with_different_inputs_are_no_batch(tmp_path: Path) -> None:
    optional = TensorSpec("O", "INT32", (1,), is_optional=True)
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": [{"X": [1]}, {"X": [1], "O": [1]}]}))
    made = model(X, optional, max_batch_size=2, batch_size=2, input_data=(str(file),))
    with pytest.raises(InputError, match="different inputs, which cannot be in one batch"):
        make_source(plan(made))


def test_steps_may_name_their_inputs_in_any_order(tmp_path: Path) -> None:
    other = TensorSpec("Z", "INT32", (1,))
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": [{"X": [1], "Z": [2]}, {"Z": [4], "X": [3]}]}))
    made = model(X, other, max_batch_size=2, batch_size=2, input_data=(str(file),))
    (request,) = requests(make_source(plan(made)), 1)
    raw = grpc_message(request).raw_input_contents
    assert [np.frombuffer(each, "<i4").tolist() for each in raw] == [[1, 3], [2, 4]]


def test_shape_tensor_is_the_whole_batchs(tmp_path: Path) -> None:
    sizes = TensorSpec("S", "INT32", (2,), is_shape=True)
    file = tmp_path / "data.json"
    steps = [{"X": [1], "S": [5, 6]}, {"X": [2], "S": [5, 6]}]
    file.write_text(json.dumps({"data": steps}))
    made = model(X, sizes, max_batch_size=2, batch_size=2, input_data=(str(file),))
    (request,) = requests(make_source(plan(made)), 1)
    assert [[*each.shape] for each in grpc_message(request).inputs] == [[2, 1], [2]]
    steps[1]["S"] = [5, 7]
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"data": steps}))
    with pytest.raises(InputError, match=r"shape tensor 'S' .* differs between steps"):
        make_source(plan(replace(made, input_data=(str(file),))))


def test_sequences_send_their_streams(tmp_path: Path) -> None:
    data = json_data(tmp_path, [1, 2], [3])
    made = plan(model(X, is_sequence=True, input_data=(data,)), sequences=1)
    found = requests(make_source(made), 4)
    assert [(values(each), *sequence_of(each)) for each in found] == [
        ([1], 1, True, False),
        ([2], 1, False, True),
        ([3], 2, True, True),
        ([1], 3, True, False),
    ]
    assert [each.sequence for each in found] == [0] * 4


def test_sequences_of_several_workers_and_models_have_ids_of_their_own() -> None:
    models = [model(X, name=name, is_sequence=True, sequence_length=2) for name in "ab"]
    made = plan(*models, sequence_ids=(10, 1000))
    found: list[Request] = []
    for worker in range(3):
        source = make_source(made, worker, 3)
        pending = [source.next_request() for _ in range(20)]
        found += [each for each in pending if each is not None]
    ids = [sequence_of(each)[0] for each in found]
    assert len({*ids}) == len(ids) == 60
    # Of one source, a sequence's index is no other one's, whatever its model.
    assert len({each.sequence for each in found[:20]}) == 20


def test_number_of_sequences_is_shared_by_the_workers() -> None:
    made = plan(model(X, is_sequence=True), sequences=5)
    counts = []
    for worker in range(3):
        source = make_source(made, worker, 3)
        count = 0
        while source.next_request() is not None:
            count += 1
        counts.append(count)
    assert counts == [2, 2, 1]


def test_texts_as_ids_where_the_model_or_the_user_says_so() -> None:
    text = model(X, is_sequence=True, has_text_ids=True)
    number = model(X, is_sequence=True)
    for made, wanted in (
        (plan(text), "1"),
        (plan(number), 1),
        (plan(number, text_ids=True), "1"),
        (plan(text, text_ids=False), 1),
    ):
        (request,) = requests(make_source(made), 1)
        assert sequence_of(request)[0] == wanted


def test_length_of_sequences_without_data_is_perf_analyzers() -> None:
    made = plan(model(X, is_sequence=True, sequence_length_variation=0.0), sequences=1)
    ends = [sequence_of(each)[2] for each in requests(make_source(made), 40)]
    assert [at for at, is_end in enumerate(ends) if is_end] == [19, 39]


def test_mix_is_exactly_in_proportion_and_seeded() -> None:
    models = [model(X, name=name, weight=Fraction(weight)) for name, weight in (("a", 3), ("b", 1))]
    made = plan(*models, seed=7)
    order = [each.workload for each in requests(make_source(made), 400)]
    assert Counter(order) == {0: 300, 1: 100}
    assert order == [each.workload for each in requests(make_source(made), 400)]
    assert order != [each.workload for each in requests(make_source(made, 1, 2), 400)]
    names = {grpc_message(each).model_name for each in requests(make_source(made), 20)}
    assert names == {"a", "b"}


def test_mix_keeps_its_proportions_while_sequences_are_busy() -> None:
    plain = model(X, name="plain")
    busy = model(X, name="busy", is_sequence=True)
    source = make_source(plan(plain, busy, sequences=1))
    first = [each for _ in range(1000) if (each := source.next_request()) is not None]
    held = [each for each in first if each.workload == 1]
    assert len(held) == 1
    # It goes on without the busy one for a while, but not for ever.
    assert 60 < len(first) < 70
    assert source.next_request() is None
    for _ in range(64):
        source.on_end(held[-1])
        request = source.next_request()
        assert request is not None
        held.append(request)
        assert request.workload == 1
    source.on_end(held[-1])
    more = [each.workload for each in requests(source, 200)]
    assert abs(Counter(more)[0] - 100) <= 1


def test_draining_source_ends_its_sequences() -> None:
    source = make_source(plan(model(X), model(X, name="s", is_sequence=True)))
    pending = [each for _ in range(40) if (each := source.next_request()) is not None]
    opened = {sequence_of(each)[0] for each in pending if each.workload == 1}
    assert opened
    source.set_draining(draining=True)
    assert source.next_request() is None
    for each in pending:
        source.on_end(each)
    ended = set()
    while (request := source.next_request()) is not None:
        identity, is_start, is_end = sequence_of(request)
        assert is_end
        assert not is_start
        ended.add(identity)
        source.on_end(request)
    assert ended == opened
    source.set_draining(draining=False)
    assert source.next_request() is not None


def test_validation_data_is_found_by_the_request(tmp_path: Path) -> None:
    data = json_data(tmp_path, 1, 2, validation_data=[{"X_OUT": [10]}, {"X_OUT": [20]}])
    made = plan(model(X, input_data=(data,)), protocol="http")
    assert expects_outputs(made)
    assert not expects_outputs(plan(model(X, input_data=(json_data(tmp_path, 1),))))
    data = json_data(tmp_path, 1, 2, validation_data=[{"X_OUT": [10]}, {"X_OUT": [20]}])
    source = make_source(made)
    for request, wanted in zip(requests(source, 2), (10, 20), strict=True):
        output = {"name": "X_OUT", "datatype": "INT32", "shape": [1], "data": [wanted]}
        body = json.dumps({"outputs": [output]}).encode()
        assert source.find_mismatch(request, body) == ""
        output["data"] = [wanted + 1]
        body = json.dumps({"outputs": [output]}).encode()
        assert "element 0 is" in source.find_mismatch(request, body)


def test_regions_hold_what_requests_refer_to() -> None:
    made = plan(
        model(X, max_batch_size=4, batch_size=2),
        distinct_inputs=3,
        random_integers=(0, 1 << 30),
        region_prefix="p",
    )
    inputs, outputs = make_regions(made)
    contents = dict(inputs.contents)
    inline = InputPlan(made.protocol, made.models, 0, made.random_integers, 3)
    for request, sent in zip(
        requests(make_source(made), 3), requests(make_source(inline), 3), strict=True
    ):
        (tensor,) = grpc_message(request).inputs
        places = tensor.parameters
        assert places["shared_memory_region"].string_param == inputs.name
        assert places["shared_memory_byte_size"].int64_param == 8
        offset = places["shared_memory_offset"].int64_param
        assert [contents[offset]] == [*grpc_message(sent).raw_input_contents]
        (output,) = grpc_message(request).outputs
        assert output.parameters["shared_memory_region"].string_param == outputs.name
        assert output.parameters["shared_memory_byte_size"].int64_param == 8
    assert make_regions(inline) == []


def test_outputs_of_variable_size_get_what_the_flag_says() -> None:
    spec = TensorSpec("X", "BYTES", (1,))
    made = plan(model(spec), region_prefix="p", output_region_bytes=1000)
    _, outputs = make_regions(made)
    assert outputs.byte_size == 1024
    bare = model(shapes=(ShapeOption("A", (1,), "FP32"),), outputs_of_model=())
    with pytest.raises(InputError, match="no outputs: name them with --requested-output"):
        make_regions(plan(bare, region_prefix="p"))
