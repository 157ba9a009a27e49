"""What `nereid serve` prints of models whose names and texts come from clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from nereid.rpc import RpcError, Status
from nereid_mesh.serve.greeting import ClientAccess, greet, loaded_models

FORGED = "2026-01-01 00:00:00,000 ERROR nereid: all is lost"
READY = "it's $(one)\nmodel"
LONG_RESPONSE = "m"
ADDRESS = "127.0.0.1:8000"


class Mesh:
    """The models of a mesh; one is unloaded before it is described. task: of one of them."""

    def __init__(self, task: str) -> None:
        self._task = task

    async def index(self) -> list[dict[str, Any]]:
        return [
            {"name": f"x\n{FORGED}", "version": f"1\n{FORGED}", "state": "UNAVAILABLE"},
            {"name": "y", "version": "1", "state": "UNAVAILABLE", "reason": f"no\r{FORGED}"},
            {"name": READY, "version": "1", "state": "READY"},
            {"name": LONG_RESPONSE, "version": "1", "state": "READY"},
            {"name": "unloaded", "version": "1", "state": "READY"},
        ]

    async def config(self, model: str) -> dict[str, Any]:
        if model not in (READY, LONG_RESPONSE):
            raise RpcError(Status.NOT_FOUND, "no such model")
        return {"max_batch_size": 4}

    async def metadata(self, model: str) -> dict[str, Any]:
        # What is read best is not what is typed fastest.
        elements, inputs = (-1, 1) if model == LONG_RESPONSE else (99, 2)
        return {
            "inputs": [{"name": "it's", "shape": [-1, inputs], "datatype": "FP32"}],
            "outputs": [{"name": "y", "shape": [-1, elements], "datatype": "FP32"}],
        }

    async def text_tasks(self, model: str) -> Collection[str]:
        return {self._task} if model == READY else ()


async def _greeting(
    capsys: pytest.CaptureFixture[str],
    access: ClientAccess | None = None,
    address: str = ADDRESS,
    task: str = "embed",
) -> str:
    mesh = Mesh(task)
    await greet(await loaded_models(mesh), {"http": address}, mesh, access or ClientAccess())
    return capsys.readouterr().out


async def test_names_and_reasons_forge_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = await _greeting(capsys)
    assert text.count(FORGED) == 3
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]


async def test_the_command_quotes_what_a_shell_would_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = (await _greeting(capsys)).splitlines()[-1].strip()
    assert command.startswith(
        f"curl http://{ADDRESS}/v2/models/it%27s%20%24%28one%29%0Amodel/infer"
    )
    assert """'{"inputs":[{"name":"it'"'"'s",""" in command


@pytest.mark.parametrize(
    ("access", "address", "command"),
    [
        (
            ClientAccess(needs_key=True),
            ADDRESS,
            f"curl -H 'Authorization: Bearer KEY-OR-TOKEN' http://{ADDRESS}/v2",
        ),
        (ClientAccess("yes"), ADDRESS, f"curl https://{ADDRESS}/v2"),
        (
            ClientAccess("mutual"),
            ADDRESS,
            f"curl --cert CERTIFICATE --key KEY https://{ADDRESS}/v2",
        ),
        (ClientAccess(), "unix:/a/b", "curl --unix-socket /a/b http://localhost/v2"),
    ],
)
async def test_the_table_and_a_command_are_printed_whatever_clients_need(
    access: ClientAccess, address: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = await _greeting(capsys, access, address)
    assert text.startswith("MODEL")
    assert text.splitlines()[-1].strip().startswith(command)


async def test_the_console_has_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Console" not in await _greeting(capsys)
    text = await _greeting(capsys, ClientAccess(console=True))
    assert f"Console              http://{ADDRESS}/console\n" in text


@pytest.mark.parametrize(
    ("task", "path"),
    [
        ("embed", "embeddings"),
        ("rank", "rerank"),
        ("classify", "classify"),
        ("decide", "decisions"),
        ("generate", "completions"),
    ],
)
async def test_a_text_model_has_an_example_of_openais_api(
    capsys: pytest.CaptureFixture[str], task: str, path: str
) -> None:
    text = await _greeting(capsys, ClientAccess(openai=True), task=task)
    assert f"OpenAI's API         http://{ADDRESS}/v1\n" in text
    command = text.splitlines()[-1].strip()
    assert command.startswith(f"curl http://{ADDRESS}/v1/{path} ")
    assert "/v1" not in await _greeting(capsys)
