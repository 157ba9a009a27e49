"""triton_python_backend_utils: what models can call, and what comes of mistakes. Entry by entry it
is recorded, in the rows python/probes and python/types.
"""

import json
import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils.tensors import (
    Tensor,
)

# Models have no types.
pb: Any = api
# ---- Tensor


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.array([True]), 1),
        (np.array(3.0, np.float16), 10),
        (np.array(["a", b"b", 3, None], np.object_), 13),
        (np.array([b"a", b"bc"]), 13),
    ],
)
def test_a_tensor_is_its_array(array: Any, datatype: int) -> None:
    tensor = pb.Tensor("x", array)
    assert tensor.name() == "x"
    assert tensor.as_numpy() is array
    assert tensor.shape() == list(array.shape)
    assert tensor.triton_dtype() == datatype
    assert tensor.is_cpu()


def test_a_tensor_of_a_transposed_array_lies_in_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    tensor = pb.Tensor("x", array)
    assert tensor.as_numpy().flags.c_contiguous
    assert bytes(tensor.raw()) == array.tobytes()


@pytest.mark.parametrize(
    "array", [np.zeros(1, np.complex64), np.array(["a"]), np.zeros(1, ">f4"), np.zeros(1, "M8[s]")]
)
def test_other_types_are_no_tensors(array: Any) -> None:
    with pytest.raises(pb.TritonModelException, match=r"NumPy dtype is not supported\."):
        pb.Tensor("x", array)


@pytest.mark.parametrize("arguments", [("x", [1, 2]), ("x", None), (3, np.zeros(1))])
def test_a_tensor_is_made_of_a_name_and_an_array(arguments: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError):
        pb.Tensor(*arguments)


def test_strings_arrive_as_bytes_objects() -> None:
    raw = pb.serialize_byte_tensor(np.array([b"", b"\xff\x00", "é"], np.object_))
    tensor = Tensor.of_raw("x", "BYTES", (3,), raw)
    assert tensor.as_numpy().tolist() == [b"", b"\xff\x00", "é".encode()]


def mapped(content: bytes) -> memoryview:
    place = mmap.mmap(-1, len(content) + 8)
    place[: len(content)] = content
    return memoryview(place)[: len(content)]


# Bytes of a tensor as they may come, and whether they are the tensor's own and in place.
RAWS: dict[str, tuple[Callable[[bytes], Any], bool]] = {
    "a message's bytes": (bytes, False),
    "a view of a message's": (lambda content: memoryview(b"12345678" + content)[8:], False),
    "a frame": (lambda content: memoryview(bytearray(b"12345678" + content))[8:], True),
    "a segment": (mapped, True),
    "a segment, not aligned": (lambda content: mapped(b"1" + content)[1:], False),
    "a read-only segment": (lambda content: mapped(content).toreadonly(), False),
}
DTYPES = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")


@pytest.mark.parametrize("size", [1, 6, 70_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", RAWS)
def test_a_given_tensor_is_writeable_aligned_and_its_models_own(
    kind: str, dtype: str, size: int
) -> None:
    make, in_place = RAWS[kind]
    wanted = (np.arange(size) % 100).astype(dtype)
    raw = make(wanted.tobytes())
    tensor = Tensor.of_raw("x", api_name(dtype), (1, size), raw)
    array = tensor.as_numpy()
    assert array.flags.carray
    assert np.array_equal(array, wanted.reshape(1, size))
    if array.itemsize > 1:
        assert np.shares_memory(array, np.frombuffer(raw, np.uint8)) == in_place
    # What a consumer of a capsule writes is seen, and sent on with the tensor.
    shared = pb.Tensor.from_dlpack("y", tensor.to_dlpack()).as_numpy()
    shared[...] = 1
    assert array.all()
    assert bytes(tensor.raw()) == np.ones(size, dtype).tobytes()
    if not in_place and array.itemsize > 1:
        assert bytes(raw) == wanted.tobytes()


def api_name(dtype: str) -> str:
    return {"?": "BOOL", "f": "FP", "u": "UINT", "i": "INT"}[dtype[0]] + (
        "" if dtype == "?" else str(8 * int(dtype[1]))
    )


def test_given_tensors_without_elements_and_dimensions() -> None:
    for raw in (b"", bytearray(), memoryview(b"")):
        tensor = Tensor.of_raw("x", "FP32", (0, 2), raw)
        assert tensor.as_numpy().shape == (0, 2)
        assert pb.Tensor.from_dlpack("y", tensor.to_dlpack()).shape() == [0, 2]
        assert bytes(tensor.raw()) == b""
    scalar = Tensor.of_raw("x", "INT64", (), bytes(8))
    scalar.as_numpy()[...] = 7
    assert scalar.raw().tobytes() == struct.pack("<q", 7)
    with pytest.raises(ValueError, match=r"12 bytes are no tensor of shape \[2\]"):
        Tensor.of_raw("x", "FP32", (2,), bytes(12)).as_numpy()


def test_given_strings_can_be_written_to_and_are_sent_on_as_they_came() -> None:
    raw = pb.serialize_byte_tensor(np.array([b"a", b"b"], np.object_))
    tensor = Tensor.of_raw("x", "BYTES", (2,), raw)
    tensor.as_numpy()[0] = b"c"
    assert tensor.as_numpy().tolist() == [b"c", b"b"]
    assert bytes(tensor.raw()) == bytes(raw)


@pytest.mark.parametrize("size", [4, 70_000])
def test_of_subclasses_of_arrays_the_data_is_sent(size: int) -> None:
    data = np.arange(size, dtype=np.float32)
    masked = np.ma.masked_array(data, np.arange(size) % 2 == 1)
    for array in (masked, data.view(np.recarray)):
        tensor = pb.Tensor("x", array)
        assert type(tensor.as_numpy()) is np.ndarray
        # By whichever way it is copied.
        assert tensor.raw().tobytes() == bytes(memoryview(tensor.raw())) == data.tobytes()
        assert tensor.shape() == list(array.shape)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4)[:, ::-1, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float64(3), (2, 3)),
        np.array(3.0),
        np.frombuffer(b"x" + bytes(16), np.float64, offset=1),
        np.zeros((0, 3)),
    ],
)
def test_arrays_are_sent_as_their_elements_are_ordered(array: Any) -> None:
    tensor = pb.Tensor("x", array)
    assert memoryview(tensor.raw()).tobytes() == array.tobytes()
    back = pb.Tensor.from_dlpack("y", tensor.to_dlpack())
    assert np.array_equal(back.as_numpy(), array)
    assert back.as_numpy().flags.writeable


def test_a_read_only_array_is_exported_as_a_copy() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    back = pb.Tensor.from_dlpack("y", pb.Tensor("x", array).to_dlpack())
    back.as_numpy()[0] = 7
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_capsule_of_numpys_becomes_a_tensor_like_any_other(dtype: str) -> None:
    array = np.ones((2, 3), dtype)
    tensor = pb.Tensor.from_dlpack("x", array.__dlpack__())
    tensor.as_numpy()[...] = 0
    assert not array.any()
    again = pb.Tensor.from_dlpack("x", tensor.to_dlpack())
    del tensor
    assert np.shares_memory(again.as_numpy(), array)
    assert again.as_numpy().flags.carray


def test_bf16_that_is_given_is_the_models_own() -> None:
    raw = b"\xc0\x3f\x00\xc0"
    tensor = Tensor.of_raw("x", "BF16", (2,), memoryview(b"1" + raw)[1:])
    capsule = tensor.to_dlpack()
    words = tensor._elements()
    assert words.flags.carray
    words[0] = 0
    assert bytes(pb.Tensor.from_dlpack("y", capsule).raw()) == bytes(tensor.raw()) == b"\0\0\0\xc0"
    assert raw == b"\xc0\x3f\x00\xc0"


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.float16, np.bool_])
def test_dlpack_both_ways_without_a_copy(dtype: Any) -> None:
    array = np.ones((2, 3), dtype)
    tensor = pb.Tensor("x", array)
    back = pb.Tensor.from_dlpack("y", tensor.to_dlpack())
    assert np.shares_memory(back.as_numpy(), array)
    assert back.name() == "y"
    # What has the protocol itself is taken as well, a Tensor included.
    assert np.shares_memory(pb.Tensor.from_dlpack("y", tensor).as_numpy(), array)
    assert np.shares_memory(pb.Tensor.from_dlpack("y", array).as_numpy(), array)
    assert np.shares_memory(np.from_dlpack(tensor), array)


def test_bf16_goes_by_dlpack_alone() -> None:
    tensor = Tensor.of_raw("x", "BF16", (1, 2), b"\xc0\x3f\x00\xc0")
    with pytest.raises(pb.TritonModelException, match="BF16"):
        tensor.as_numpy()
    back = pb.Tensor.from_dlpack("y", tensor.to_dlpack())
    assert back.triton_dtype() == 14
    assert back.shape() == [1, 2]
    assert bytes(back.raw()) == b"\xc0\x3f\x00\xc0"


def test_what_dlpack_does_not_take() -> None:
    strings = pb.Tensor("x", np.array([b"a"]))
    with pytest.raises(pb.TritonModelException, match="DLPack does not have support for string"):
        strings.to_dlpack()
    capsule = pb.Tensor("x", np.zeros(1)).to_dlpack()
    pb.Tensor.from_dlpack("y", capsule)
    with pytest.raises(pb.TritonModelException, match="DLPack capsule that is not used"):
        pb.Tensor.from_dlpack("y", capsule)
    for what in ("text", None):
        with pytest.raises(pb.TritonModelException, match="Provided tensor is not supported"):
            pb.Tensor.from_dlpack("y", what)


# ---- requests and responses


def request(**about: Any) -> Any:
    tensor = pb.Tensor("X", np.zeros(1))
    about = {"inputs": [tensor], "requested_output_names": ["Y"], "model_name": "m", **about}
    return pb.InferenceRequest(**about)


def test_a_request_returns_its_arguments() -> None:
    made = request(
        request_id="q", correlation_id="abc", flags=1, timeout=4, parameters={"a": 1, "b": "x"}
    )
    assert [tensor.name() for tensor in made.inputs()] == ["X"]
    assert made.request_id() == "q"
    assert made.correlation_id() == "abc"
    assert made.flags() == 1
    made.set_flags(2)
    assert made.flags() == 2
    assert made.timeout() == 4
    assert json.loads(made.parameters()) == {"a": 1, "b": "x"}
    assert set(made.requested_output_names()) == {"Y"}
    assert made.trace().get_context() is None
    assert not made.is_cancelled()


def test_what_a_request_may_be_made_of_besides() -> None:
    memory = pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU, 1)
    assert memory.preferred_memory_type is pb.TRITONSERVER_MEMORY_GPU
    assert memory.preferred_device_id == 1
    with pytest.raises(TypeError):
        pb.PreferredMemory(1)
    made = request(preferred_memory=memory, trace=pb.InferenceTrace("context"))
    assert made.trace().get_context() == "context"
    assert (pb.TRITONSERVER_MEMORY_GPU, pb.TRITONSERVER_MEMORY_CPU) == (0, 1)


@pytest.mark.parametrize(
    ("about", "error"),
    [
        ({"inputs": [1]}, TypeError),
        ({"request_id": 3}, TypeError),
        ({"correlation_id": 1.5}, pb.TritonModelException),
        ({"parameters": {"a": [1]}}, pb.TritonModelException),
        ({"parameters": {3: 1}}, pb.TritonModelException),
        ({"parameters": {"a": 1 << 63}}, TypeError),
        ({"parameters": 3}, pb.TritonModelException),
        ({"inputs": {}}, TypeError),
        ({"requested_output_names": None}, TypeError),
        ({"requested_output_names": "Y"}, TypeError),
        ({"requested_output_names": [1]}, TypeError),
        ({"model_name": None}, TypeError),
        ({"model_version": None}, TypeError),
        ({"flags": 1 << 32}, TypeError),
        ({"timeout": 1 << 64}, TypeError),
        ({"correlation_id": -1}, RuntimeError),
        ({"correlation_id": None}, TypeError),
        ({"preferred_memory": None}, TypeError),
        ({"trace": None}, TypeError),
    ],
)
def test_a_request_made_wrongly(about: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        request(**about)


def test_a_request_of_the_models_own_has_no_sender() -> None:
    with pytest.raises(pb.TritonModelException, match="Response factory does not exist"):
        request().get_response_sender()


def test_release_flags() -> None:
    for flags in (pb.TRITONSERVER_REQUEST_RELEASE_ALL, pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
        # Of a request that the model makes itself nothing comes of it.
        assert request().set_release_flags(flags) is None
    # Whatever converts to an integer but a float.
    request().set_release_flags(np.float32(1))
    for wrong in ("all", 1.0, -1, 1 << 32, None):
        with pytest.raises(TypeError):
            request().set_release_flags(wrong)


def test_responses() -> None:
    tensor = pb.Tensor("Y", np.zeros(1))
    response = pb.InferenceResponse([tensor], parameters={"a": True})
    assert response.output_tensors() == [tensor]
    assert not response.has_error()
    assert response.error() is None
    assert json.loads(response.parameters()) == {"a": True}
    failed = pb.InferenceResponse(error=pb.TritonError("m", pb.TritonError.NOT_FOUND))
    assert failed.output_tensors() == []
    assert failed.has_error()
    assert (failed.error().message(), int(failed.error().code())) == ("m", 2)
    assert pb.InferenceResponse([], pb.TritonError("e")).error().code() == pb.TritonError.INTERNAL


@pytest.mark.parametrize(
    "make",
    [
        lambda: pb.InferenceResponse([3]),
        lambda: pb.InferenceResponse(error="x"),
        lambda: pb.InferenceResponse(None),
        lambda: pb.TritonError("m", 99),
        lambda: pb.TritonError(3),
        lambda: pb.TritonError("\ud800"),
        lambda: pb.Tensor.from_dlpack(3, np.zeros(1)),
        lambda: pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU, None),
        pb.Logger,
        lambda: pb.Logger.log("x", 1),
        lambda: pb.load_model(None),
        lambda: pb.load_model("m", files={"file:1/model.py": "x"}),
        lambda: pb.load_model("m", files={1: b"x"}),
        lambda: pb.unload_model("m", "yes"),
        lambda: pb.is_model_ready("m", 1),
        lambda: request().exec("yes"),
        lambda: request().async_exec([]),
    ],
)
def test_arguments_of_wrong_types(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        make()


def test_arguments_that_are_refused_in_other_words() -> None:
    text = "failed to load model 'm', files should be a dictionary of file paths and file contents"
    with pytest.raises(pb.TritonModelException, match=f"^{text}$"):
        pb.load_model("m", files=[])
    with pytest.raises(
        pb.TritonModelException, match=r"^Expect N8pybind114dictE, got <class 'int'"
    ):
        pb.InferenceResponse(parameters=3)
    with pytest.raises(RuntimeError, match="no running event loop"):
        request().async_exec()


def test_tensors_by_name() -> None:
    tensor = pb.Tensor("X", np.zeros(1))
    assert pb.get_input_tensor_by_name(request(inputs=[tensor]), "X") is tensor
    assert pb.get_input_tensor_by_name(request(), "Z") is None
    response = pb.InferenceResponse([tensor])
    assert pb.get_output_tensor_by_name(response, "X") is tensor
    assert pb.get_output_tensor_by_name(response, "Z") is None


# ---- datatypes


def test_datatypes_by_number_and_name() -> None:
    for name, dtype in pb.TRITON_STRING_TO_NUMPY.items():
        assert pb.triton_string_to_numpy(name) is dtype
        number = pb.numpy_to_triton_type(np.dtype(dtype))
        assert np.dtype(pb.triton_to_numpy_type(number)) == np.dtype(dtype)
    assert pb.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb.triton_string_to_numpy("TYPE_FP32") is np.float32
    with pytest.raises(KeyError):
        pb.triton_string_to_numpy("TYPE_NONE")


def test_strings_framed_and_back() -> None:
    strings = np.array([[b"a", b""], [b"\x00", "é".encode()]], np.object_)
    framed = pb.serialize_byte_tensor(strings)
    assert pb.deserialize_bytes_tensor(framed).tolist() == strings.ravel().tolist()
    assert pb.serialize_byte_tensor(np.zeros(0, np.object_)) == ()
    assert pb.serialize_byte_tensor(np.zeros(2)) is None
    for cut in (framed[:2], framed[:-1]):
        with pytest.raises(struct.error, match="unpack_from requires a buffer of at least"):
            pb.deserialize_bytes_tensor(cut)
    assert pb.deserialize_bytes_tensor([]).shape == (0,)
