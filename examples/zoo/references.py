"""What the clients compare a server's responses with, and the results they print.

Reads the `expected/expected.npz` that lies beside each example model, and turns text into tokens.
Knows no protocol and no server.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .bert import Tokens

Arrays = dict[str, NDArray[Any]]

# Its probabilities are all 0.001, so a looser bound would pass anything.
RESNET50_TOLERANCE = 1e-6
# Room for a GPU's TF32, which keeps 10 bits of a number; on a CPU the difference is about 1e-7.
MINILM_TOLERANCE = 1e-3


def load(models: Path, model: str) -> Arrays:
    with np.load(models / model / "expected" / "expected.npz") as arrays:
        return dict(arrays)


def tokenise(tokenizer_json: Path, sentences: Iterable[str]) -> Tokens:
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    tokenizer.enable_padding()  # to the longest sentence; the file itself says 128
    encodings = tokenizer.encode_batch([str(sentence) for sentence in sentences])
    return Tokens(
        input_ids=np.array([one.ids for one in encodings], np.int64),
        attention_mask=np.array([one.attention_mask for one in encodings], np.int64),
        token_type_ids=np.array([one.type_ids for one in encodings], np.int64),
    )


def check_digits(expected: Arrays, label: NDArray[Any]) -> bool:
    """Print served and offline accuracy; true if every image got the label it gets offline."""
    label = label.reshape(-1)
    served = float((label == expected["digit"]).mean())
    offline = float((expected["label"] == expected["digit"]).mean())
    differing = int((label != expected["label"]).sum())
    print(
        f"digits    {len(label)} held-out images: accuracy served {served:.4f}, "
        f"offline {offline:.4f}, {differing} labels differ"
    )
    return differing == 0


def check_resnet50(expected: Arrays, softmax: NDArray[Any]) -> bool:
    difference = float(np.abs(softmax - expected["softmax"]).max())
    print(f"resnet50  differs from its expected output by at most {difference:.1e}")
    return difference < RESNET50_TOLERANCE


def check_minilm(expected: Arrays, embedding: NDArray[Any]) -> bool:
    """Print how alike the sentences are; true if the embeddings are those of the NumPy model."""
    sentences = expected["sentences"]
    similarity = embedding @ embedding.T  # the embeddings have unit length
    for first in range(len(sentences)):
        for second in range(first + 1, len(sentences)):
            pair = f'"{sentences[first]}" ~ "{sentences[second]}"'
            print(f"minilm    {similarity[first, second]:+.3f}  {pair}")
    difference = float(np.abs(embedding - expected["sentence_embedding"]).max())
    print(f"minilm    differs from NumPy's embeddings by at most {difference:.1e}")
    return difference < MINILM_TOLERANCE


def texts_of(expected: Arrays) -> NDArray[Any]:
    """Return the sentences of minilm as text for `embed`: BYTES [batch, 1]."""
    return np.array([[str(each).encode()] for each in expected["sentences"]], np.object_)


def check_embed(expected: Arrays, embedding: NDArray[Any]) -> bool:
    """Print how far `embed` is from minilm's reference; true if that is next to nothing."""
    difference = float(np.abs(embedding - expected["sentence_embedding"]).max())
    print(f"embed     from text alone, differs from NumPy's embeddings by at most {difference:.1e}")
    return difference < MINILM_TOLERANCE
