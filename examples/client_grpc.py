"""Sends requests to the example models over gRPC and compares the responses with their references.

    python examples/client_grpc.py --url localhost:8001 --models models

Exits 1 if a response differs. client_http.py is the same over HTTP.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from zoo import references


def infer(
    client: triton.InferenceServerClient, model: str, arrays: references.Arrays
) -> triton.InferResult:
    """One request: the input arrays by name in, a result to take outputs from by name back."""
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer(model, inputs)


def digits(client: triton.InferenceServerClient, models: Path) -> bool:
    expected = references.load(models, "digits")
    batches = np.array_split(expected["pixels"], 12)
    labels = [infer(client, "digits", {"pixels": batch}).as_numpy("label") for batch in batches]
    return references.check_digits(expected, np.concatenate(labels))


def resnet50(client: triton.InferenceServerClient, models: Path) -> bool:
    expected = references.load(models, "resnet50")
    result = infer(client, "resnet50", {"gpu_0/data_0": expected["image"]})
    return references.check_resnet50(expected, result.as_numpy("gpu_0/softmax_1"))


def minilm(client: triton.InferenceServerClient, models: Path) -> bool:
    expected = references.load(models, "minilm")
    tokenizer = models / "minilm" / "tokenizer.json"
    tokens = references.tokenise(tokenizer, expected["sentences"])
    result = infer(client, "minilm", tokens.by_name())
    return references.check_minilm(expected, result.as_numpy("sentence_embedding"))


def embed(client: triton.InferenceServerClient, models: Path) -> bool:
    expected = references.load(models, "minilm")
    result = infer(client, "embed", {"text": references.texts_of(expected)})
    return references.check_embed(expected, result.as_numpy("embedding"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the repository")
    arguments = parser.parse_args()
    try:
        with triton.InferenceServerClient(arguments.url) as client:
            right = [check(client, arguments.models) for check in (digits, resnet50, minilm, embed)]
    except (InferenceServerException, OSError) as error:
        sys.exit(f"{arguments.url}: {error}")
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
