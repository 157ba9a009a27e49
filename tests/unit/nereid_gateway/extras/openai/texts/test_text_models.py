"""Rows of text models: the tensors of their tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.methods import SCHEDULER
from nereid.mesh_routing.access import OneScheduler
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Call, Handlers
from nereid.text import TextInput, TextMapping
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.rows import Row
from nereid_gateway.extras.openai.texts.text_models import (
    TextModel,
    TextModels,
    TokenStep,
    rows_of,
)
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit, Tokens
from nereid_gateway.extras.openai.work_pool import WorkPool
from nereid_gateway.plane.control.control import Control
from tests.support.models import text_models
from tests.support.rpc.local_channel import LocalChannel

TOKENIZER = text_models.tokenizer().to_str().encode()
NO_LIMIT = TokenLimit(0)


def model_of(*, with_tokenizer: bool = True, **mapping: Any) -> TextModel:
    files = {"tokenizer.json": TOKENIZER} if with_tokenizer else {}
    response = pb.ModelTextResponse(version="3", digest=b"d", files=files)
    return TextModel("m", response, TextMapping(frozenset({"embed"}), output="out", **mapping))


def tensors_of(row: Row) -> dict[str, np.ndarray[Any, Any]]:
    head = kserve_pb2.ModelInferRequest.FromString(row.head)
    assert (head.model_name, head.model_version) == ("m", "3")
    assert [output.name for output in head.outputs] == ["out"]
    types = {"INT32": np.int32, "INT64": np.int64}
    contents: list[Any] = row.payloads
    return {
        tensor.name: np.frombuffer(content, types[tensor.datatype]).reshape(tensor.shape)
        for tensor, content in zip(head.inputs, contents, strict=True)
    }


def test_a_pair_has_ids_a_mask_and_types() -> None:
    model = model_of(
        ids=TextInput("ids", "INT64"),
        mask=TextInput("mask", "INT32"),
        types=TextInput("types", "INT64"),
    )
    encoding = text_models.tokenizer().encode("the cat", "rain")
    (row,) = rows_of(model, [("the cat", "rain")], NO_LIMIT)
    assert {name: tensor.tolist() for name, tensor in tensors_of(row).items()} == {
        "ids": [encoding.ids],
        "mask": [[1] * 6],
        "types": [encoding.type_ids],
    }
    assert row.tokens == row.size == 6
    assert row.text_digest == b"d"


def test_rows_of_a_fixed_length_are_padded() -> None:
    model = model_of(
        ids=TextInput("ids", "INT32"),
        mask=TextInput("mask", "INT64"),
        types=TextInput("types", "INT32"),
        fixed_tokens=6,
        pad_id=9,
    )
    (row,) = rows_of(model, ["the cat"], NO_LIMIT)
    assert {name: tensor.tolist() for name, tensor in tensors_of(row).items()} == {
        "ids": [[2, 76, 77, 3, 9, 9]],
        "mask": [[1, 1, 1, 1, 0, 0]],
        "types": [[0] * 6],
    }
    assert row.tokens == 4
    with pytest.raises(InvalidArgument, match="takes 6 tokens, not 7"):
        rows_of(model, ["the cat sat on mat"], NO_LIMIT)


@pytest.mark.parametrize(("first", "positions"), [(0, [0, 1, 2, 3, 1, 1]), (2, [2, 3, 4, 5, 1, 1])])
def test_positions_are_counted(first: int, positions: list[int]) -> None:
    model = model_of(
        ids=TextInput("ids", "INT64"),
        positions=TextInput("positions", "INT64"),
        first_position=first,
        fixed_tokens=6,
    )
    (row,) = rows_of(model, ["the cat"], NO_LIMIT)
    assert tensors_of(row)["positions"].tolist() == [positions]


def test_a_row_of_a_sequence_has_its_tokens_and_a_mask_for_all() -> None:
    model = model_of(
        ids=TextInput("ids", "INT64"),
        mask=TextInput("mask", "INT64"),
        positions=TextInput("positions", "INT64"),
        keeps_tokens=True,
    )
    row = model.token_row(Tokens([7]), step=TokenStep("a", before=3))
    assert {name: tensor.tolist() for name, tensor in tensors_of(row).items()} == {
        "ids": [[7]],
        "mask": [[1] * 4],
        "positions": [[3]],
    }
    assert row.parameters == {"sequence_id": "a", "sequence_start": False, "sequence_end": False}
    first, second = (model.token_row(Tokens([7, 8])).parameters or {} for _ in range(2))
    assert (first["sequence_start"], first["sequence_end"]) == (True, True)
    assert first["sequence_id"] != second["sequence_id"]


def test_a_model_without_batches_may_take_a_list_of_tokens() -> None:
    model = model_of(ids=TextInput("ids", "INT64", rank=1))
    (row,) = rows_of(model, [[2, 5, 3]], NO_LIMIT)
    assert tensors_of(row)["ids"].tolist() == [2, 5, 3]


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_a_model_may_take_the_text_itself(with_tokenizer: bool) -> None:
    model = model_of(
        with_tokenizer=with_tokenizer, text=TextInput("TEXT", "BYTES"), tokenizer="tokenizer.json"
    )
    (row,) = rows_of(model, ["é cat"], NO_LIMIT)
    head = kserve_pb2.ModelInferRequest.FromString(row.head)
    assert list(head.inputs[0].shape) == [1, 1]
    content: Any = row.payloads[0]
    assert bytes(content) == b"\x06\0\0\0" + "é cat".encode()
    # Tokens are counted only by a tokenizer; the order of rows needs no more than the bytes.
    assert row.tokens == (4 if with_tokenizer else 0)
    assert row.size == 6
    with pytest.raises(InvalidParameter, match="takes texts"):
        rows_of(model, [[1, 2]], NO_LIMIT)


class Questions:
    """Schedulers that respond to ModelText when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[pb.ModelTextRequest] = asyncio.Queue()
        self.responses: asyncio.Queue[pb.ModelTextResponse] = asyncio.Queue()
        handlers = Handlers(async_unary={f"{SCHEDULER}ModelText": self._respond})
        mesh = OneScheduler(dial_nothing, LocalChannel(handlers))
        self.models = TextModels(Control(mesh, 5), WorkPool(1))

    async def _respond(self, _call: Call, message: bytes) -> bytes:
        self.asked.put_nowait(pb.ModelTextRequest.FromString(message))
        return (await self.responses.get()).SerializeToString()


def dial_nothing(**_callbacks: Any) -> Any:
    raise AssertionError("control calls need no link")


def response_of(version: str = "3", digest: bytes = b"d") -> pb.ModelTextResponse:
    message = pb.ModelTextResponse(version=version, digest=digest)
    message.config.input.add(name="input_ids", data_type="TYPE_INT64", dims=[-1])
    message.config.output.add(name="out", data_type="TYPE_FP32", dims=[-1])
    message.config.max_batch_size = 1
    message.files["tokenizer.json"] = TOKENIZER
    message.files["text.json"] = b'{"task": "embed"}'
    return message


async def test_a_model_is_asked_about_once_until_a_change() -> None:
    it = Questions()
    it.responses.put_nowait(response_of())
    model = await it.models.get("m")
    assert await it.models.get("m") is model
    it.models.expire_all()
    it.responses.put_nowait(pb.ModelTextResponse(version="3", digest=b"d"))
    assert await it.models.get("m") is model
    assert [it.asked.get_nowait().known_digest for _ in range(2)] == [b"", b"d"]
    assert it.asked.empty()


async def test_a_change_during_a_question_has_the_next_call_ask_again() -> None:
    it = Questions()
    first = asyncio.ensure_future(it.models.get("m"))
    await it.asked.get()
    it.models.expire_all()
    it.responses.put_nowait(response_of())
    assert (await first).digest == b"d"
    it.responses.put_nowait(response_of(digest=b"e"))
    assert (await it.models.get("m")).digest == b"e"


async def test_another_version_with_the_known_files_is_another_model() -> None:
    it = Questions()
    it.responses.put_nowait(response_of())
    model = await it.models.get("m")
    it.models.expire_all()
    it.responses.put_nowait(pb.ModelTextResponse(version="4", digest=b"d"))
    newer = await it.models.get("m")
    assert (newer.version, newer.files, newer.mapping) == ("4", model.files, model.mapping)
