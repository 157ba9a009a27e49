"""What the operator's flags and a model's parameters make of a worker's confinement."""

from __future__ import annotations

import marshal
import sys
from pathlib import Path

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.permitted_models import NamePatterns
from nereid.pb import model_config_pb2
from nereid_executor.backends.python.sandbox.policy import (
    Confinement,
    WorkerSandbox,
    missing_protection,
)
from nereid_executor.settings import SandboxSettings

MODEL = Path("/models/m")
ALL = {"landlock": 7, "seccomp": 1, "namespaces": 1, "process_limit": 1}


def confinement(settings: SandboxSettings, **parameters: str) -> Confinement | None:
    config = model_config_pb2.ModelConfig(name="m")
    for name, text in parameters.items():
        config.parameters[name].string_value = text
    sandbox = WorkerSandbox()
    sandbox.configure(settings)
    return sandbox.confinement_of(config, MODEL, sys.executable)


def test_no_confinement_without_the_flag() -> None:
    assert confinement(SandboxSettings()) is None


def test_a_model_gets_what_the_operator_allows() -> None:
    settings = SandboxSettings(sandbox_models=True, sandbox_allow=("network",))
    plain = confinement(settings)
    asked = confinement(settings, sandbox_allow="network", sandbox_processes="7")
    assert plain is not None
    assert asked is not None
    assert not marshal.loads(plain.policy([], Path("/tmp/own")))["network"]
    policy = marshal.loads(asked.policy(["python"], Path("/tmp/own")))
    assert policy["network"]
    assert policy["limits"]["NPROC"] == 7
    assert policy["limits"]["CORE"] == 0
    assert policy["command"] == ["python"]


def test_a_model_cannot_have_more_than_the_operator_allows() -> None:
    settings = SandboxSettings(sandbox_models=True, sandbox_memory_bytes=1 << 30)
    with pytest.raises(InvalidArgument, match="'network', which --sandbox-allow does not allow"):
        confinement(settings, sandbox_allow="network")
    with pytest.raises(InvalidArgument, match=r"sandbox_memory_bytes.*at most 1073741824"):
        confinement(settings, sandbox_memory_bytes=str(2 << 30))
    with pytest.raises(InvalidArgument, match="whole number"):
        confinement(settings, sandbox_processes="many")


def test_a_model_reads_its_own_folder_and_its_interpreter() -> None:
    confined = confinement(SandboxSettings(sandbox_models=True, sandbox_read_path=("/data",)))
    assert confined is not None
    readable = marshal.loads(confined.policy([], Path("/tmp/own")))["read"]
    assert {"/models/m", sys.prefix, sys.base_prefix, "/data", "/usr"} <= set(readable)
    assert not {"/", "/models", "/tmp", "/home", "/etc", "/proc", "/dev", "/run"} & set(readable)


def test_an_interpreter_opens_its_environment_and_no_other_folder(tmp_path: Path) -> None:
    """A model's own program could otherwise open the folder beside, or one that it links to."""
    environment, program = tmp_path / "env", tmp_path / "models" / "m" / "python"
    link = tmp_path / "models" / "m" / "bin" / "python"
    for path in (environment / "bin" / "python", environment / "pyvenv.cfg", program):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "state" / "bin").mkdir(parents=True)
    (tmp_path / "state" / "bin" / "python").touch()
    link.parent.mkdir()
    link.symlink_to(tmp_path / "state" / "bin" / "python")
    sandbox = WorkerSandbox()
    sandbox.configure(SandboxSettings(sandbox_models=True))

    def readable(python: Path) -> set[str]:
        confined = sandbox.confinement_of(
            model_config_pb2.ModelConfig(), tmp_path / "models" / "m", str(python)
        )
        assert confined is not None
        return {path for path in confined.read if path.startswith(str(tmp_path))}

    model = str(tmp_path / "models" / "m")
    assert readable(environment / "bin" / "python") == {model, str(environment)}
    assert readable(program) == {model, str(program)}
    assert readable(link) == {model, str(link), str(tmp_path / "state" / "bin" / "python")}


def test_a_model_calls_the_models_of_its_rules() -> None:
    everything = confinement(SandboxSettings(sandbox_models=True))
    rules = ("m:shared_*", "m:other", "x*:secret")
    some = confinement(SandboxSettings(sandbox_models=True, sandbox_call=rules))
    nothing = confinement(SandboxSettings(sandbox_models=True, sandbox_call=("x:y",)))
    assert everything is not None
    assert everything.calls is None
    assert some is not None
    assert some.calls == NamePatterns(("shared_*", "other"))
    assert nothing is not None
    assert nothing.calls == NamePatterns(())


def test_cpu_time_has_no_limit_but_a_given_one() -> None:
    def limits(most: int, **parameters: str) -> dict[str, int]:
        settings = SandboxSettings(sandbox_models=True, sandbox_cpu_seconds=most)
        confined = confinement(settings, **parameters)
        assert confined is not None
        limits: dict[str, int] = marshal.loads(confined.policy([], Path("/tmp/own")))["limits"]
        return limits

    assert "CPU" not in limits(0)
    assert limits(60)["CPU"] == 60
    assert limits(60, sandbox_cpu_seconds="5")["CPU"] == limits(0, sandbox_cpu_seconds="5")["CPU"]
    with pytest.raises(InvalidArgument, match="at most 60"):
        limits(60, sandbox_cpu_seconds="61")


def test_a_worker_gets_no_variable_that_may_be_a_secret() -> None:
    confined = confinement(SandboxSettings(sandbox_models=True, sandbox_variable=("MODE",)))
    assert confined is not None
    environ = {
        "PATH": "/bin", "LANG": "C", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0",
        "SSL_CERT_FILE": "/ca", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "1",
        "TOKENIZERS_TOKEN": "s",
        "MODE": "x", "AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "s", "DATABASE_URL": "s",
        "TORCH_API_KEY": "s", "TF_VAR_x": "s", "KUBECONFIG": "s", "SSH_AUTH_SOCK": "s",
        "HOME": "/root",
    }  # fmt: skip
    kept = confined.environ({**environ, "USER": "somebody"}, Path("/tmp/own"))
    kept.pop("PYTHONUSERBASE", None)
    assert kept == {
        "PATH": "/bin", "LANG": "C", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0",
        "SSL_CERT_FILE": "/ca", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "1",
        "MODE": "x", "HOME": "/tmp/own", "TMPDIR": "/tmp/own",
        "LOGNAME": "somebody", "USER": "somebody",
    }  # fmt: skip
    assert confined.environ(environ, Path("/tmp/own"))["LOGNAME"] == Path.home().owner()


def test_what_a_kernel_lacks_is_named() -> None:
    assert missing_protection(ALL) == []
    assert "root" in missing_protection({**ALL, "process_limit": 0})[0]
    assert "signal" in missing_protection({**ALL, "landlock": 5})[0]
    missing = missing_protection({})
    assert [text.split(":")[0] for text in missing] == [
        "no Landlock", "no seccomp", "no user namespaces",
    ]  # fmt: skip
