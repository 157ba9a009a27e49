"""A server as people write it around sentence-transformers' loop, with onnxruntime.

usage: fastapi_server.py PORT FOLDER THREADS

Texts that have arrived while a batch runs are the next batches, sorted by length.
"""

import asyncio
import base64
import contextlib
import sys
from pathlib import Path
from typing import Any

import fastapi
import numpy as np
import onnxruntime
import pydantic
import tokenizers
import uvicorn

BATCH_SIZE = 32
MAX_WAITING = 1024


class Body(pydantic.BaseModel):
    """Body of /v1/embeddings."""

    model: str
    input: str | list[str]
    encoding_format: str = "float"


class Encoder:
    """The model, which one thread at a time uses."""

    def __init__(self, folder: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        (path,) = folder.glob("**/model.onnx")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(512)

    def encode(self, texts: list[str]) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Return vectors and numbers of tokens."""
        vectors = np.zeros((len(texts), 384), np.float32)
        counts = [0] * len(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        for begin in range(0, len(order), BATCH_SIZE):
            indexes = order[begin : begin + BATCH_SIZE]
            encodings = self._tokenizer.encode_batch([texts[index] for index in indexes])
            feeds = {
                "input_ids": np.array([each.ids for each in encodings], np.int64),
                "attention_mask": np.array([each.attention_mask for each in encodings], np.int64),
                "token_type_ids": np.array([each.type_ids for each in encodings], np.int64),
            }
            (found,) = self._session.run(["sentence_embedding"], feeds)
            vectors[indexes] = found / np.linalg.norm(found, axis=1, keepdims=True)
            for index, each in zip(indexes, encodings, strict=True):
                counts[index] = sum(each.attention_mask)
        return vectors, counts


Waiting = tuple[list[str], asyncio.Future[tuple[np.ndarray[Any, Any], list[int]]]]


def make_app(encoder: Encoder) -> fastapi.FastAPI:
    """Return the application."""
    queue: asyncio.Queue[Waiting] = asyncio.Queue(MAX_WAITING)

    async def work() -> None:
        while True:
            calls = [await queue.get()]
            while not queue.empty():
                calls.append(queue.get_nowait())
            texts = [text for texts, _ in calls for text in texts]
            vectors, counts = await asyncio.to_thread(encoder.encode, texts)
            begin = 0
            for own, done in calls:
                end = begin + len(own)
                if not done.cancelled():
                    done.set_result((vectors[begin:end], counts[begin:end]))
                begin = end

    @contextlib.asynccontextmanager
    async def lifespan(_app: fastapi.FastAPI) -> Any:
        task = asyncio.create_task(work())
        yield
        task.cancel()

    app = fastapi.FastAPI(lifespan=lifespan)

    async def create(body: Body) -> dict[str, Any]:
        texts = [body.input] if isinstance(body.input, str) else body.input
        done: asyncio.Future[tuple[np.ndarray[Any, Any], list[int]]] = (
            asyncio.get_running_loop().create_future()
        )
        await queue.put((texts, done))
        vectors, counts = await done
        is_base64 = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode()
                if is_base64
                else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(counts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": body.model, "data": data, "usage": usage}

    app.post("/v1/embeddings")(create)
    return app


def main() -> None:
    """Serve until the process is ended."""
    port, folder, threads = sys.argv[1:4]
    app = make_app(Encoder(Path(folder), int(threads)))
    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
