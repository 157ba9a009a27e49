"""Transcriptions over a mesh, by OpenAI's client."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.mesh.mesh import running

pytestmark = pytest.mark.slow

# It says how long a file is.
MODEL = """
import io
import wave

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            content = pb_utils.get_input_tensor_by_name(request, "AUDIO").as_numpy().item()
            with wave.open(io.BytesIO(content)) as file:
                said = f"{file.getnframes()} frames at {file.getframerate()} Hz"
            text = pb_utils.Tensor("TEXT", np.array([said.encode()], np.object_))
            responses.append(pb_utils.InferenceResponse([text]))
        return responses
"""
CONFIG = """
backend: "python"
input { name: "AUDIO" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "text" value { string_value: '{"task": "transcribe"}' } }
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder: Path = tmp_path_factory.mktemp("speech") / "whisper"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG)
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(folder.parent, log, "--openai-api") as mesh:
        url = f"http://127.0.0.1:{mesh.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client


def speech(frames: int) -> tuple[str, bytes]:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes(b"\r\n" * frames)
    return "speech.wav", file.getvalue()


@pytest.mark.parametrize("frames", [10, 500_000])
def test_a_file_becomes_a_text(client: openai.OpenAI, frames: int) -> None:
    got = client.audio.transcriptions.create(model="whisper", file=speech(frames))
    assert got.text == f"{frames} frames at 16000 Hz"


def test_what_the_model_does_not_take_is_refused_by_name(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.create
    file = speech(1)
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="whisper", file=file, language="de")
    assert refused.value.param == "language"
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="whisper", file=file, extra_body={"zoom": "1"})
    assert refused.value.param == "zoom"
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="whisper", file=("empty.wav", b""))
    assert refused.value.param == "file"
    with pytest.raises(openai.NotFoundError):
        create(model="other", file=file)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="whisper", input="x")
    assert refused.value.code == "model_not_supported"
