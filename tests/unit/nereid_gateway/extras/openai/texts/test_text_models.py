"""Rows of text models: the tensors of their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.text import TextInput, TextMapping
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.rows import Row
from nereid_gateway.extras.openai.texts.text_models import TextModel, rows_of
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit
from tests.support.models import text_models

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
