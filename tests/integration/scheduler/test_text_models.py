"""Files of text models that gateways get with the configuration that they go with."""

import shutil
import time
from pathlib import Path

import pytest

from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import add_model, world

OVERRIDE = {
    "backend": "onnxruntime",
    "max_batch_size": 3,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
}


async def test_a_gateway_gets_the_files_of_the_version_once(repository: Path) -> None:
    (repository / "doubler" / "tokenizer.json").write_bytes(b"{}")
    (repository / "doubler" / "1" / "text.json").write_bytes(b"[]")
    add_model(repository, "without")
    async with world(repository) as it:
        assert (await it.control("ModelText")).names == []
        await it.executor()
        await it.until_state("READY")
        await it.until_state("READY", "without")
        assert (await it.control("ModelText")).names == ["doubler"]
        text = await it.control("ModelText", name="doubler", version="1")
        assert (text.version, text.config) == ("1", await it.config("doubler"))
        assert dict(text.files) == {"tokenizer.json": b"{}", "text.json": b"[]"}
        assert abs(text.loaded_s - time.time()) < 600
        known = await it.control("ModelText", name="doubler", known_digest=text.digest)
        assert (known.digest, dict(known.files)) == (text.digest, {})
        assert not known.HasField("config")
        assert not (await it.control("ModelText", name="without")).files
        with pytest.raises(RpcError, match="unknown model") as refused:
            await it.control("ModelText", name="other")
        assert refused.value.status is Status.NOT_FOUND


async def test_files_that_have_changed_since_the_load_are_refused(repository: Path) -> None:
    tokenizer = repository / "doubler" / "tokenizer.json"
    tokenizer.write_bytes(b"{}")
    async with world(repository, model_control_mode="explicit", load_model=("doubler",)) as it:
        await it.executor()
        await it.until_state("READY")
        tokenizer.write_bytes(b'{"new": 1}')
        with pytest.raises(RpcError, match=r"'doubler' cannot be read: tokenizer.json: it has cha"):
            await it.control("ModelText", name="doubler")
        await it.load()
        assert (await it.control("ModelText", name="doubler")).files["tokenizer.json"] == (
            b'{"new": 1}'
        )


async def test_gateways_get_the_files_of_the_load_while_the_next_are_written(
    repository: Path,
) -> None:
    tokenizer = repository / "doubler" / "tokenizer.json"
    tokenizer.write_bytes(b"{}")
    async with world(repository, model_control_mode="explicit", load_model=("doubler",)) as it:
        await it.executor()
        await it.until_state("READY")
        first = await it.control("ModelText", name="doubler")
        tokenizer.write_bytes(b'{"new": 1}')
        other = await it.control("ModelText", name="doubler")
        assert (other.digest, dict(other.files)) == (first.digest, {"tokenizer.json": b"{}"})
        # Whoever has the files of the load may go on with them.
        known = await it.control("ModelText", name="doubler", known_digest=first.digest)
        assert not known.files
        await it.load()
        again = await it.control("ModelText", name="doubler")
        assert (again.files["tokenizer.json"], again.digest == first.digest) == (
            b'{"new": 1}',
            False,
        )


async def test_models_on_demand_are_named_and_loaded(repository: Path) -> None:
    (repository / "doubler" / "tokenizer.json").write_bytes(b"{}")
    async with world(repository, lazy_loading=True) as it:
        await it.executor()
        assert (await it.control("ModelText")).names == ["doubler"]
        text = await it.control("ModelText", name="doubler")
        assert dict(text.files) == {"tokenizer.json": b"{}"}


async def test_files_of_a_load_request_are_its_own(repository: Path) -> None:
    (repository / "doubler" / "tokenizer.json").write_bytes(b"{}")
    async with world(repository, model_control_mode="explicit", allow_model_files=True) as it:
        await it.executor()
        files = {"1/model.onnx": b"", "text.json": b"[1]"}
        await it.load(config=OVERRIDE, files=files)
        await it.until_state("READY")
        assert dict((await it.control("ModelText", name="doubler")).files) == {"text.json": b"[1]"}


async def test_files_are_those_of_the_version_that_most_requests_go_to(repository: Path) -> None:
    folder = repository / "doubler"
    shutil.copytree(folder / "1", folder / "2")
    for number in ("1", "2"):
        (folder / number / "text.json").write_text(f"[{number}]")
    async with world(repository, model_control_mode="explicit") as it:
        await it.executor()
        await it.load(config=OVERRIDE | {"version_policy": {"all": {}}})
        for weights, version in ({}, "2"), ({1: 9, 2: 1}, "1"), ({1: 1, 2: 9}, "2"):
            if weights:
                await it.control("ModelTraffic", model="doubler", traffic={"weights": weights})
            text = await it.control("ModelText", name="doubler")
            assert (text.version, text.files["text.json"]) == (version, f"[{version}]".encode())
        assert (await it.control("ModelText", name="doubler", version="1")).version == "1"
