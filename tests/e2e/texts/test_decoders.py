"""Exported decoders over a mesh: each text is a sequence whose keys and values stay with its
instance.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openai
import pytest

from nereid_gateway.extras.openai.generation.logits import Sampler
from nereid_gateway.extras.openai.generation.sampling import Sampling
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import decoders, generators
from tests.support.models.decoders import BareDecoder

pytestmark = pytest.mark.slow

MODELS = ("plain", "merged", "slim")
AT_ONCE = 64


class Site(NamedTuple):
    repository: Path
    mesh: Mesh
    openai: openai.OpenAI
    bare: BareDecoder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("decoders")
    plain = decoders.export(repository / "plain")
    decoders.export(repository / "merged", merged=True)
    decoders.export(repository / "slim", slim=True)
    decoders.export(repository / "wide", vocabulary=200_000)
    decoders.export(repository / "vectors", vectors=True)
    decoders.export(repository / "alone", config=decoders.ONE_SLOT)
    # Its sequences are over before their next token comes.
    decoders.export(repository / "forgetful", config=decoders.ONE_SLOT.replace("600000000", "1"))
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh:
        url = f"http://127.0.0.1:{mesh.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            yield Site(repository, mesh, client, BareDecoder(plain))


def prompts(count: int) -> list[str]:
    random = np.random.default_rng(3)
    return ["".join(random.choice(list("abcdef "), size=1 + each % 9)) for each in range(count)]


@pytest.mark.parametrize("model", MODELS)
def test_texts_are_those_of_all_tokens_at_once(site: Site, model: str) -> None:
    create = site.openai.completions.create
    before = site.mesh.counts(model)
    greedy = create(model=model, prompt="a cat", temperature=0, max_tokens=40)
    assert greedy.choices[0].text == site.bare.greedy("a cat", 40)
    assert greedy.usage is not None
    assert (greedy.usage.prompt_tokens, greedy.usage.completion_tokens) == (5, 40)
    # The last token ends the sequence.
    assert site.mesh.counts(model)["inference_count"] - before["inference_count"] == 40
    sampled = create(model=model, prompt="a cat", seed=7, temperature=0.9, max_tokens=40, n=2)
    for index, choice in enumerate(sampled.choices):
        sampler = Sampler(Sampling({"seed": 7, "temperature": 0.9}), index)
        assert choice.text == site.bare.sampled("a cat", 40, sampler)
    assert sampled.choices[0].text != sampled.choices[1].text


@pytest.mark.parametrize("model", MODELS)
async def test_more_sequences_than_slots(site: Site, model: str) -> None:
    url = f"http://{site.mesh.http}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        texts = await asyncio.gather(
            *(
                client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12)
                for prompt in prompts(AT_ONCE)
            )
        )
    for prompt, got in zip(prompts(AT_ONCE), texts, strict=True):
        assert got.choices[0].text == site.bare.greedy(prompt, 12)


def test_a_long_prompt_comes_in_parts(site: Site) -> None:
    prompt = "a cat " * 20
    got = site.openai.completions.create(model="wide", prompt=prompt, temperature=0, max_tokens=3)
    assert got.choices[0].text == BareDecoder(site.repository / "wide").greedy(prompt, 3)
    # Three parts of up to 41 tokens, whose logits have less than 32 MiB, and two more tokens.
    assert site.mesh.counts("wide")["inference_count"] == 5


def test_a_text_that_ends_early_gives_its_slot_back(site: Site) -> None:
    create = site.openai.completions.create
    text = site.bare.greedy("a cat", 40)
    stop = text[10:12]
    for _ in range(3):
        got = create(model="alone", prompt="a cat", temperature=0, max_tokens=40, stop=[stop])
        assert got.choices[0].text == text.partition(stop)[0]
        assert got.choices[0].finish_reason == "stop"


def test_a_client_that_leaves_gives_its_slot_back(site: Site) -> None:
    create = site.openai.completions.create
    for _ in range(3):
        with create(model="alone", prompt="b", max_tokens=500, stream=True) as stream:
            next(iter(stream))
            # This one waits for the slot.
            with create(model="plain", prompt="b", max_tokens=500, stream=True) as other:
                next(iter(other))
    got = create(model="alone", prompt="a cat", temperature=0, max_tokens=10)
    assert got.choices[0].text == site.bare.greedy("a cat", 10)
    until(lambda: "nereid_gateway_pending_requests 0" in site.mesh.metrics(), "no request")


async def test_dropped_streams_leave_nothing(site: Site) -> None:
    url = f"http://{site.mesh.http}/v1"
    slots = asyncio.Semaphore(16)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def drop(tokens: int) -> None:
            async with slots:
                stream = await client.completions.create(
                    model="alone", prompt="a cat", max_tokens=400, n=2, stream=True
                )
                async with stream:
                    for _ in range(tokens):
                        await anext(stream)

        await asyncio.gather(*(drop(number % 9) for number in range(60)))
    live = 'nereid_sequences{model="alone",version="1",state="live"} 0\n'
    await asyncio.to_thread(until, lambda: live in site.mesh.metrics(), "the sequences to end")


def test_a_sequence_whose_time_is_over_changes_no_text(site: Site) -> None:
    got = site.openai.completions.create(
        model="forgetful", prompt="a cat", temperature=0, max_tokens=20
    )
    assert got.choices[0].text == site.bare.greedy("a cat", 20)


def test_a_killed_executor_changes_no_text(site: Site) -> None:
    create = site.openai.completions.create
    expected = site.bare.greedy("a cat", 400)
    stream = create(model="plain", prompt="a cat", temperature=0, max_tokens=400, stream=True)
    parts = [next(iter(stream)).choices[0].text]
    with site.mesh.held("nereid_executor"):
        (pid,) = site.mesh.children("nereid_executor")
        os.kill(pid, signal.SIGKILL)
    parts += [event.choices[0].text for event in stream]
    assert "".join(parts) == expected


def test_vectors_of_a_decoder(site: Site) -> None:
    texts = ["a cat", "rain", "a"]
    got = site.openai.embeddings.create(model="vectors", input=texts, encoding_format="float")
    bare = BareDecoder(site.repository / "vectors", "last_hidden_state")
    for text, item in zip(texts, got.data, strict=True):
        vector = bare.last(generators.tokenizer().encode(text).ids)
        np.testing.assert_allclose(item.embedding, vector / np.linalg.norm(vector), atol=1e-6)
