"""A server as people write it around sentence-transformers' loop, with onnxruntime.

usage: fastapi_server.py PORT EMBEDDER DECIDER THREADS

EMBEDDER and DECIDER are the folders of the models. Texts, or pairs of texts, that have arrived
while a batch runs are the next batches, sorted by length.
"""

import asyncio
import base64
import contextlib
import sys
from pathlib import Path
from typing import Any, Literal

import fastapi
import numpy as np
import onnxruntime
import pydantic
import tokenizers
import uvicorn

BATCH_SIZE = 32
MAX_WAITING = 1024


class EmbeddingsBody(pydantic.BaseModel):
    """Body of /v1/embeddings."""

    model: str
    input: str | list[str]
    encoding_format: str = "float"


class Predicate(pydantic.BaseModel):
    """Question of a body of /v1/decisions."""

    type: Literal["predicate"]
    instructions: str


class DecisionsBody(pydantic.BaseModel):
    """Body of /v1/decisions."""

    model: str
    input: str
    questions: list[Predicate]


Text = str | tuple[str, str]
Results = tuple[np.ndarray[Any, Any], list[int]]


class Encoder:
    """A model, which one thread at a time uses."""

    def __init__(self, folder: Path, output: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        (path,) = folder.glob("**/model.onnx")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._output = output
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(512)

    def encode(self, texts: list[Text]) -> Results:
        """Return the outputs of texts, or of pairs of texts, and their numbers of tokens."""
        order = sorted(range(len(texts)), key=lambda index: -_length(texts[index]))
        parts = []
        counts = [0] * len(texts)
        for begin in range(0, len(order), BATCH_SIZE):
            indexes = order[begin : begin + BATCH_SIZE]
            encodings = self._tokenizer.encode_batch([texts[index] for index in indexes])
            feeds = {
                "input_ids": np.array([each.ids for each in encodings], np.int64),
                "attention_mask": np.array([each.attention_mask for each in encodings], np.int64),
                "token_type_ids": np.array([each.type_ids for each in encodings], np.int64),
            }
            parts += self._session.run([self._output], feeds)
            for index, each in zip(indexes, encodings, strict=True):
                counts[index] = sum(each.attention_mask)
        found = np.concatenate(parts)
        outputs = np.empty_like(found)
        outputs[order] = found
        return outputs, counts


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


class EncoderQueue:
    """Texts that wait for an encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._calls: asyncio.Queue[tuple[list[Text], asyncio.Future[Results]]] = asyncio.Queue(
            MAX_WAITING
        )

    async def encode(self, texts: list[Text]) -> Results:
        """Return the outputs of a call's texts, and their numbers of tokens."""
        done: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        await self._calls.put((texts, done))
        return await done

    async def work(self) -> None:
        """Encode what is waiting, until the task is cancelled."""
        while True:
            calls = [await self._calls.get()]
            while not self._calls.empty():
                calls.append(self._calls.get_nowait())
            waiting = [text for texts, _ in calls for text in texts]
            outputs, counts = await asyncio.to_thread(self._encoder.encode, waiting)
            begin = 0
            for own, done in calls:
                end = begin + len(own)
                if not done.cancelled():
                    done.set_result((outputs[begin:end], counts[begin:end]))
                begin = end


def make_app(embedder: EncoderQueue, decider: EncoderQueue) -> fastapi.FastAPI:
    """Return the application."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: fastapi.FastAPI) -> Any:
        tasks = [asyncio.create_task(queue.work()) for queue in (embedder, decider)]
        yield
        for task in tasks:
            task.cancel()

    app = fastapi.FastAPI(lifespan=lifespan)

    async def embed(body: EmbeddingsBody) -> dict[str, Any]:
        texts: list[Text] = [body.input] if isinstance(body.input, str) else [*body.input]
        found, counts = await embedder.encode(texts)
        vectors = found / np.linalg.norm(found, axis=1, keepdims=True)
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

    async def decide(body: DecisionsBody) -> dict[str, Any]:
        logits, counts = await decider.encode(
            [(body.input, question.instructions) for question in body.questions]
        )
        probabilities = 1 / (1 + np.exp(-logits[:, 0].astype(float)))
        decisions = [{"type": "predicate", "probability": float(each)} for each in probabilities]
        usage = {"input_tokens": sum(counts), "output_tokens": 0, "total_tokens": sum(counts)}
        return {"model": body.model, "answers": decisions, "usage": usage}

    app.post("/v1/embeddings")(embed)
    app.post("/v1/decisions")(decide)
    return app


def main() -> None:
    """Serve until the process is ended."""
    port, embedder, decider, threads = sys.argv[1:5]
    queues = [
        EncoderQueue(Encoder(Path(folder), output, int(threads)))
        for folder, output in ((embedder, "sentence_embedding"), (decider, "logits"))
    ]
    uvicorn.run(make_app(*queues), port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
