"""A model for Triton's Python backend: text to BERT's tokens (lower-case WordPiece).

Needs nothing but NumPy and the vocabulary, which the parameter `vocabulary` of its configuration
names, as a path from the model's directory.
"""

import json
import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MAX_TOKENS = 128
MAX_WORD_LENGTH = 100
SPECIAL = re.compile(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])")
# Chinese characters are words of their own: first and last code points of their blocks.
CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def normalised(text: str) -> str:
    """Lower case without accents, control characters and unusual spaces."""
    kept = []
    for character in text:
        if character in "\t\n\r":
            kept.append(" ")
        elif character == "\ufffd" or unicodedata.category(character).startswith("C"):
            continue
        elif character.isspace():
            kept.append(" ")
        elif any(first <= ord(character) <= last for first, last in CHINESE):
            kept.append(f" {character} ")
        else:
            kept.append(character)
    decomposed = unicodedata.normalize("NFD", "".join(kept))
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn").lower()


def is_punctuation(character: str) -> bool:
    # ASCII's symbols count, though Unicode calls some of them otherwise.
    ascii_symbol = character.isascii() and character.isprintable() and not character.isalnum()
    return ascii_symbol or unicodedata.category(character).startswith("P")


def words(text: str) -> list[str]:
    """Text at its spaces and around its punctuation."""
    spaced = "".join(f" {c} " if is_punctuation(c) else c for c in text)
    return spaced.split()


class WordPiece:
    """Tokens by a vocabulary."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        # Text consists of the same words again and again.
        self.pieces = lru_cache(1 << 16)(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, with those that BERT expects at both ends."""
        ids: list[int] = []
        for part in SPECIAL.split(text):
            if SPECIAL.fullmatch(part):
                ids.append(self.vocabulary[part])
            else:
                for word in words(normalised(part)):
                    ids += self.pieces(word)
        return [self.vocabulary["[CLS]"], *ids[: MAX_TOKENS - 2], self.vocabulary["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        """Return the longest pieces, from left to right; a missing one spoils the word."""
        unknown = [self.vocabulary["[UNK]"]]
        if len(word) > MAX_WORD_LENGTH:
            return unknown
        ids, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self.vocabulary.get(prefix + word[start:end])
                if piece is not None:
                    ids.append(piece)
                    start = end
                    break
            else:
                return unknown
        return ids


def read_vocabulary(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {token: number for number, token in enumerate(lines)}


class TritonPythonModel:
    """One text for each row of a batch; rows are padded to the longest."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        place = parameters["vocabulary"]["string_value"]
        self.tokens = WordPiece(read_vocabulary(Path(args["model_repository"], place)))

    def execute(self, requests: list) -> list:
        return [self.respond(request) for request in requests]

    def respond(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
        rows = [self.tokens.encode(text.decode(errors="replace")) for text in texts]
        shape = len(rows), max(map(len, rows))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        outputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        )
