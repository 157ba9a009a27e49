"""What a load may bring and run: allowed backends, files in requests, files that a configuration
names.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.rpc import RpcError, Status
from nereid_scheduler.core.models.allowed_backends import AllowedBackends
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    World,
    add_model,
    description,
    world,
)


async def refusal(
    it: World, model: str, config: str | None = None, files: dict[str, bytes] | None = None
) -> str:
    with pytest.raises(RpcError) as raised:
        await it.load(model, config, files)
    assert raised.value.status is Status.INVALID_ARGUMENT
    return raised.value.message


@pytest.mark.parametrize("backends", ["onnxruntime", "-python"])
async def test_a_backend_that_is_not_allowed(repository: Path, backends: str) -> None:
    # Its code would run to complete its configuration.
    add_model(repository, "script", 'backend: "python"')
    settings: dict[str, Any] = {
        "model_control_mode": "explicit",
        "backends": AllowedBackends.parse(backends),
    }
    async with world(repository, **settings) as it:
        executor = await it.executor(backends=("onnxruntime", "python"), described=description())
        await it.load("doubler")
        text = await refusal(it, "script")
        assert text == (
            "load failed for model 'script': version 1 is at UNAVAILABLE state: Invalid argument:"
            " backend 'python' of model 'script' is not allowed on this server (--backends);\n"
        )
        # Nor by a configuration of the request.
        config = json.dumps({"backend": "python"})
        assert "is not allowed" in await refusal(it, "doubler", config)
        assert (await it.index())["doubler"][0] == "READY"
        kinds = []
        while not executor.commands.empty():
            command = await executor.command()
            kinds.append(command.WhichOneof("command"))
            assert command.load.config.backend in ("", "onnxruntime")
        assert "describe" not in kinds


async def test_files_in_a_load_request(repository: Path) -> None:
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
    async with world(repository, model_control_mode="explicit", allow_model_files=False) as it:
        await it.executor(described=description())
        text = await refusal(it, "new", config, {"1/model.onnx": b"x"})
        assert "--allow-model-files" in text
        # A configuration alone is allowed.
        await it.load("doubler", json.dumps({"backend": "onnxruntime", "max_batch_size": 2}))
    async with world(repository, model_control_mode="explicit") as it:
        await it.executor(described=description())
        await it.load("new", config, {"1/model.onnx": b"x"})
        assert (await it.index())["new"][0] == "READY"


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../etc/passwd", "a/../../b"])
@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("label_filename", 'output { name: "OUTPUT0" label_filename: "%s" }'),
        (
            "input_data_file",
            (
                'model_warmup { batch_size: 1 inputs { key: "INPUT0" value {'
                ' data_type: TYPE_FP32 dims: [2] input_data_file: "%s" } } }'
            ),
        ),
        ("default_model_filename", 'default_model_filename: "%s"'),
        ("cc_model_filenames", 'cc_model_filenames { key: "8.6" value: "%s" }'),
        ("op_library_filename", 'model_operations { op_library_filename: "%s" }'),
    ],
)
async def test_files_outside_the_models_folder(
    repository: Path, field: str, template: str, name: str
) -> None:
    config = 'backend: "onnxruntime"\n' + template % name
    add_model(repository, "curious", config)
    async with world(repository, model_control_mode="explicit") as it:
        executor = await it.executor(described=description())
        text = await refusal(it, "curious")
        expected = (
            f"label file path '{name}' for output 'OUTPUT0' in model 'curious' is outside model"
            if field == "label_filename"
            else f"{field} '{name}' of model 'curious' must stay within the model's directory"
        )
        assert expected in text
        assert executor.commands.empty()


async def test_a_library_that_the_backend_does_not_have(repository: Path) -> None:
    add_model(repository, "other", 'backend: "onnxruntime" runtime: "model.py"')
    async with world(repository, model_control_mode="explicit") as it:
        await it.executor(described=description())
        assert await refusal(it, "other") == (
            "load failed for model 'other': version 1 is at UNAVAILABLE state: Invalid argument:"
            " unable to find Python backend based backend library 'model.py' for model 'other';\n"
        )


async def test_links_in_a_models_folder_are_its_owners(repository: Path) -> None:
    config = CONFIG.replace(
        'output [ { name: "OUTPUT0"', 'output [ { name: "OUTPUT0" label_filename: "labels/l.txt"'
    )
    add_model(repository, "linked", config)
    shared = repository.parent / "shared"
    shared.mkdir()
    (shared / "l.txt").write_text("zero\none")
    (repository / "linked" / "labels").symlink_to(shared)
    async with world(repository, model_control_mode="explicit") as it:
        await it.executor()
        await it.load("linked")
        assert (await it.index())["linked"][0] == "READY"
