"""Sends requests to the example models over HTTP and gRPC with asyncio and compares the responses.

    python examples/client_aio.py --http-url localhost:8000 --grpc-url localhost:8001

Every held-out digit is a request of its own, and all are in flight at once: the server's dynamic
batching joins them. Exits 1 if a response differs from its reference.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from zoo import references


class Server(NamedTuple):
    """A connected client and its module: tritonclient.http.aio or .grpc.aio, used alike."""

    triton: ModuleType
    client: Any


async def infer(server: Server, model: str, arrays: references.Arrays) -> Any:
    """One request: the input arrays by name in, a result to take outputs from by name back."""
    inputs = []
    for name, array in arrays.items():
        tensor = server.triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return await server.client.infer(model, inputs)


async def digits(server: Server, models: Path) -> bool:
    expected = references.load(models, "digits")
    images = np.split(expected["pixels"], len(expected["pixels"]))
    requests = [infer(server, "digits", {"pixels": image}) for image in images]
    results = await asyncio.gather(*requests)
    labels = [result.as_numpy("label") for result in results]
    return references.check_digits(expected, np.concatenate(labels))


async def resnet50(server: Server, models: Path) -> bool:
    expected = references.load(models, "resnet50")
    result = await infer(server, "resnet50", {"gpu_0/data_0": expected["image"]})
    return references.check_resnet50(expected, result.as_numpy("gpu_0/softmax_1"))


async def minilm(server: Server, models: Path) -> bool:
    expected = references.load(models, "minilm")
    tokenizer = models / "minilm" / "tokenizer.json"
    tokens = references.tokenise(tokenizer, expected["sentences"])
    result = await infer(server, "minilm", tokens.by_name())
    return references.check_minilm(expected, result.as_numpy("sentence_embedding"))


async def embed(server: Server, models: Path) -> bool:
    expected = references.load(models, "minilm")
    result = await infer(server, "embed", {"text": references.texts_of(expected)})
    return references.check_embed(expected, result.as_numpy("embedding"))


async def check_models(triton: ModuleType, url: str, models: Path) -> list[bool]:
    async with triton.InferenceServerClient(url) as client:
        server = Server(triton, client)
        return [await model(server, models) for model in (digits, resnet50, minilm, embed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--http-url", default="localhost:8000")
    parser.add_argument("--grpc-url", default="localhost:8001")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the repository")
    arguments = parser.parse_args()
    right = []
    for triton, url in ((triton_http, arguments.http_url), (triton_grpc, arguments.grpc_url)):
        print(f"-- {triton.__name__} at {url}")
        try:
            right += asyncio.run(check_models(triton, url, arguments.models))
        except (InferenceServerException, OSError) as error:
            sys.exit(f"{url}: {error}")
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
