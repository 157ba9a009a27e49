"""The real models' requests and bare loops: each must do the work that it stands for."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.real_models import gpt, sentences, subject
from benchmarks.real_models.gpt import Gpt


def inputs_of(request: bytes) -> dict[str, Any]:
    head, _, body = request.partition(b"\r\n\r\n")
    length = int(head.partition(b"Inference-Header-Content-Length: ")[2].split(b"\r\n")[0])
    message: dict[str, Any] = json.loads(body[:length])
    sizes = [each["parameters"]["binary_data_size"] for each in message["inputs"]]
    assert len(body) == length + sum(sizes)
    return message


def shapes_of(requests: list[bytes]) -> list[list[int]]:
    return [inputs_of(request)["inputs"][0]["shape"] for request in requests]


def test_mixed_sentences_differ_in_length_and_between_clients() -> None:
    mixed = sentences.Sentences("mixed", Path("none"), mixed=True)
    one, other = (shapes_of([*islice(mixed.requests(client), 192)]) for client in (0, 1))
    assert len({*map(tuple, one)}) > 30
    assert one != other
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize("padded", [False, True])
def test_batches_of_sentences_have_all_of_them_once(*, padded: bool) -> None:
    feeds = sentences.Sentences("mixed", Path("none"), mixed=True)._feeds()
    batches = sentences.batches_of(feeds, 4, padded=padded)
    words = sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert words == sum(feed["input_ids"].size for feed in feeds)
    assert sum(len(batch["input_ids"]) for batch in batches) == len(feeds)
    assert max(len(batch["input_ids"]) for batch in batches) == 4
    lengths = {batch["input_ids"].shape[1] for batch in batches}
    assert padded == (len(lengths) == 8)


@pytest.fixture(scope="module")
def small_gpt(tmp_path_factory: pytest.TempPathFactory) -> Gpt:
    return gpt.subjects(tmp_path_factory.mktemp("models"))[0]


@pytest.mark.slow
def test_a_gpt_step_knows_the_tokens_before(small_gpt: Gpt) -> None:
    session = subject.open_session(small_gpt.file, 1)

    def logits(*tokens: int) -> Any:
        past = np.zeros([1, *session.get_inputs()[1].shape[1:]], np.float32)
        for position, token in enumerate(tokens):
            feed = {
                "token": np.array([[token]]),
                "position": np.array([[position]]),
                "past": past,
            }
            found, past = session.run(["logits", "present"], feed)
        return found

    assert np.array_equal(logits(1, 2), logits(1, 2))
    assert not np.allclose(logits(1, 2), logits(3, 2))


def test_a_client_begins_its_sequence_anew_when_the_context_is_full(small_gpt: Gpt) -> None:
    requests = [inputs_of(each)["parameters"] for each in islice(small_gpt.requests(3), 129)]
    assert {each["sequence_id"] for each in requests} == {4}
    assert [step for step, each in enumerate(requests) if each["sequence_start"]] == [0, 128]
    assert [step for step, each in enumerate(requests) if each["sequence_end"]] == [127]
