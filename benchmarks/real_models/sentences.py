"""MiniLM on sentences of 128 tokens and of mixed lengths, as ONNX and as a Python model."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.models import minilm
from benchmarks.models.workload import ONNX_SCRIPT
from benchmarks.peers import native
from benchmarks.real_models import subject
from benchmarks.real_models.subject import Arrays, Run

_OUTPUT = "sentence_embedding"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_LONGEST = 128
_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128)
_SENTENCES = 192
_PADDING = (
    'parameters { key: "padding" value { string_value: "'
    "input_ids[0] attention_mask[0] token_type_ids[0] -> last_hidden_state[0]:"
    f' {" ".join(map(str, _BUCKETS))}" }} }}\n'
)
_MAX_BATCH_SIZE = 32
_CONFIG = "".join(
    [
        f"max_batch_size: {_MAX_BATCH_SIZE}\n",
        *(f'input {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }}\n' for name in _INPUTS),
        'output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] }\n',
        f'output {{ name: "{_OUTPUT}" data_type: TYPE_FP32 dims: [ 384 ] }}\n',
        "dynamic_batching { }\n",
    ]
)


@dataclass(frozen=True)
class Sentences:
    """Sentences of MiniLM.

    file: the model's file. mixed: sentences have different lengths. padded: sentences are padded,
    so that sentences of different lengths can share a batch. scripted: the model is a model.py.
    """

    name: str
    file: Path
    mixed: bool = False
    padded: bool = False
    scripted: bool = False

    @property
    def batched(self) -> str:
        """Name of the model whose executions are counted."""
        return self.name

    @property
    def peers(self) -> tuple[str, ...]:
        """Peers other than Nereid that can serve the model."""
        return ("triton",) if self.scripted else (native.NAME,)

    def write(self, repository: Path, peer: str) -> None:
        """Write the repository."""
        folder = repository / self.name
        (folder / "1").mkdir(parents=True)
        shutil.copy(self.file, folder / "1" / "model.onnx")
        if self.scripted:
            shutil.copy(ONNX_SCRIPT, folder / "1" / "model.py")
        backend = "python" if self.scripted else "onnxruntime"
        padding = _PADDING if self.padded and peer == "nereid" else ""
        head = f'name: "{self.name}"\nbackend: "{backend}"\n'
        subject.write_config(folder, head + _CONFIG + padding)

    def requests(self, client: int) -> Iterator[bytes]:
        """Yield a client's requests."""
        outputs = [subject.binary_output(_OUTPUT)]
        made = [subject.http_request(self.name, feed, outputs) for feed in self._feeds()]
        # Clients must not send one length at the same time.
        return itertools.cycle([*made[client * 11 % len(made) :], *made[: client * 11 % len(made)]])

    def open_bare(self, threads: int) -> Callable[[int], Run]:
        """Return the loop for a batch size."""
        session = subject.open_session(self.file, threads)

        def run_batches(batch_size: int) -> Run:
            def run_of(feed: Arrays) -> Run:
                def run() -> int:
                    session.run([_OUTPUT], feed)
                    return len(feed["input_ids"])

                return run

            feeds = self._feeds()
            if not self.mixed:
                return run_of(subject.repeated(feeds[0], batch_size))
            if not self.padded and batch_size == 1:
                return subject.one_after_the_other([run_of(feed) for feed in feeds])
            return subject.one_after_the_other(
                [run_of(batch) for batch in batches_of(feeds, batch_size, padded=self.padded)]
            )

        return run_batches

    def _feeds(self) -> list[Arrays]:
        random = np.random.default_rng(3)
        lengths = [_LONGEST]
        if self.mixed:
            # Most are short, as in what people write: a mean of 41, a median of 33.
            drawn = np.exp(random.normal(3.5, 0.7, _SENTENCES))
            lengths = [*np.clip(drawn.astype(int), 4, _LONGEST)]
        feeds: list[Arrays] = []
        for length in lengths:
            words = random.integers(2000, 30000, (1, length))
            feeds.append(dict(zip(_INPUTS, (words, np.ones_like(words), np.zeros_like(words)))))  # noqa: B905 - three
        return feeds


def batches_of(feeds: Sequence[Arrays], batch_size: int, *, padded: bool) -> list[Arrays]:
    """Return all sentences in batches, in random order. Sentences of a batch are equally long.

    padded: sentences are padded to the next length of _BUCKETS.
    """
    by_length: dict[int, list[Arrays]] = {}
    for feed in feeds:
        length = feed["input_ids"].shape[1]
        size = next(bucket for bucket in _BUCKETS if bucket >= length) if padded else length
        place = ((0, 0), (0, size - length))
        by_length.setdefault(size, []).append(
            {name: np.pad(array, place) for name, array in feed.items()}
        )
    batches: list[Arrays] = []
    for alike in by_length.values():
        for first in range(0, len(alike), batch_size):
            rows = alike[first : first + batch_size]
            batches.append({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    order = np.random.default_rng(5).permutation(len(batches))
    return [batches[index] for index in order]


def subjects(models: Path) -> list[Sentences]:
    """Return the subjects of this module."""
    file = minilm.model_file(models)
    return [
        Sentences("minilm", file),
        Sentences("minilm-mixed", file, mixed=True),
        Sentences("minilm-padded", file, mixed=True, padded=True),
        Sentences("minilm-python", file, scripted=True),
    ]
