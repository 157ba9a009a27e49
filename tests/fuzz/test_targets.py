"""The fuzz targets without a fuzzer: seeds, what was found once, and mutations of both.

`make fuzz` looks for more.
"""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest

from tests.fuzz.__main__ import TARGETS
from tests.fuzz.found import FOUND

MUTATIONS = 400


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(f"tests.fuzz.{request.param}")


def test_seeds(target: Any) -> None:
    for seed in target.SEEDS:
        target.run(seed)


def test_what_was_found(target: Any) -> None:
    for each in FOUND.get(target.__name__.rpartition(".")[2], []):
        target.run(each)


@pytest.mark.slow
def test_mutations(target: Any) -> None:
    chance = random.Random(7)
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(target.SEEDS))
        for _ in range(chance.randint(1, 4)):
            _mutate(data, chance, target.WORDS)
        target.run(bytes(data[: target.MAX_BYTES]))


def _mutate(data: bytearray, chance: random.Random, words: list[bytes]) -> None:
    at = chance.randint(0, len(data))
    match chance.randint(0, 4):
        case 0:
            data[at : at + 1] = bytes((chance.randint(0, 255),))
        case 1:
            data[at:at] = chance.choice(words)
        case 2:
            del data[at : at + chance.randint(1, 8)]
        case 3:
            data[at:at] = data[chance.randint(0, at) : at]
        case 4:
            word = chance.choice(words)
            data[at : at + len(word)] = word
