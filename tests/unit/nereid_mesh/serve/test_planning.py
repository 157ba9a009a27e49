"""What `nereid serve` plans: processes, their flags, their order."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from nereid.mesh_auth.tokens import new_token
from nereid_executor.core.cores import usable_cores
from nereid_mesh.serve.plan import ChildSpec, Plan
from nereid_mesh.serve.planning import plan_mesh

CACHE = "--cache-config=local,size=1048576"


def plan(directory: Path, *flags: str) -> Plan:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    return plan_mesh(
        str(directory),
        [f"--model-repository={directory}", "--gpus=none", "--executors=1", *ports, *flags],
    )


def flags_of(child: ChildSpec, name: str) -> list[str]:
    """A flag's values, in their order."""
    pairs = (each.partition("=") for each in child.argv)
    return [value for flag, _, value in pairs if flag == f"--{name}"]


def executors(planned: Plan) -> list[ChildSpec]:
    return [each for each in planned.children if "nereid_executor" in each.argv]


def test_a_plan_reaches_the_process_that_runs_it(tmp_path: Path) -> None:
    planned = plan(tmp_path, "--join=none", CACHE)
    assert pickle.loads(pickle.dumps(planned)) == planned


def test_gateways_of_a_group_differ_in_their_trace_files_alone(tmp_path: Path) -> None:
    traces = "--trace-config=triton,file=/tmp/t.json", "--trace-config=rate=5"
    planned = plan(tmp_path, "--gateways=3", "--reuse-http-port=true", *traces)
    gateways = [each for each in planned.children if each.name in planned.gateways]
    assert planned.gateways == tuple(each.name for each in gateways)
    assert len(gateways) == 3
    files = []
    for each in gateways:
        argv = [flag for flag in each.argv if not flag.startswith("--trace-config=triton,file")]
        assert argv == [flag for flag in gateways[0].argv if flag in argv]
        files.append([flag for flag in each.argv if flag not in argv][-1].rpartition("=")[2])
    assert files == ["/tmp/t.json", "/tmp/t.json.gateway-1", "/tmp/t.json.gateway-2"]
    names = [each.name for each in planned.children if each not in gateways]
    assert names == ["nereid_scheduler 0", "nereid_executor 0"]
    assert [name for name, edge in planned.edges.items() if edge.is_reused] == ["http"]
    assert planned.addresses["grpc"] == "0.0.0.0:0"


@pytest.mark.parametrize(
    ("flags", "gateway", "inherited"),
    [
        (("--join=none",), "nereid_gateway 0", ["http", "grpc", "metrics"]),
        (("--allow-metrics=false",), "nereid_mesh.serve.joined 0", ["http", "grpc"]),
        # grpcio binds its port itself.
        (("--grpc-engine=grpcio",), "nereid_mesh.serve.joined 0", ["http", "metrics"]),
    ],
    ids=["gateway", "joined", "grpcio"],
)
def test_a_lone_gateway_inherits_its_ports(
    tmp_path: Path, flags: tuple[str, ...], gateway: str, inherited: list[str]
) -> None:
    planned = plan(tmp_path, *flags)
    assert planned.gateways == (gateway,) == (planned.children[0].name,)
    assert [name for name, edge in planned.edges.items() if edge.is_inherited] == inherited


def test_models_may_block_their_executor_alone(tmp_path: Path) -> None:
    joined, executor = plan(tmp_path).children
    assert not joined.may_block
    assert executor.may_block


def test_standbys_are_for_what_restarts_faster_with_them(tmp_path: Path) -> None:
    planned = plan(tmp_path, "--join=none", "--standby", CACHE)
    standbys = [each.name for each in planned.children if each.standby_after_s is not None]
    assert standbys == ["nereid_gateway 0", "nereid_scheduler 0"]
    planned = plan(tmp_path, CACHE)
    assert not any(each.standby_after_s for each in planned.children)


def test_state_in_redis_needs_a_redis_and_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        plan(tmp_path, "--state-name=mine", CACHE)
    errors = [line for line in capsys.readouterr().err.splitlines() if "--state-name" in line]
    assert [error.partition("requires ")[2] for error in errors] == [
        "a cache in Redis (--cache-config=redis,host=...)",
        "the mesh's own token (--mesh-token-file)",
    ]
    token = tmp_path / "token"
    token.write_text(new_token())
    token.chmod(0o600)
    redis = "--cache-config=redis,host=h"
    planned = plan(tmp_path, "--state-name=mine", redis, f"--mesh-token-file={token}")
    # Not in the directory that is the default, too.
    assert {"--state-name=mine", "--state-directory="} <= set(planned.children[0].argv)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--executors=2"], [str(max(1, usable_cores() // 2))]),
        (["--executors=2", "--cpu-cores=5"], ["5"]),
    ],
    ids=["counted", "as asked"],
)
def test_executors_of_one_machine_share_its_cores(
    tmp_path: Path, flags: list[str], expected: list[str]
) -> None:
    found = [flags_of(each, "cpu-cores") for each in executors(plan(tmp_path, *flags))]
    assert found == [expected] * 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "0"),
        (["--lazy-loading", "--model-memory-budget=1GiB"], "2"),
        (["--lazy-loading", "--model-memory-budget=1GiB", "--malloc-arenas=9"], "9"),
    ],
    ids=["models stay", "models make way", "as asked"],
)
def test_executors_whose_models_make_way_have_few_arenas(
    tmp_path: Path, flags: list[str], expected: str
) -> None:
    (executor,) = executors(plan(tmp_path, *flags))
    assert flags_of(executor, "malloc-arenas") == [expected]


def test_several_schedulers_know_each_other_and_everybody_knows_them(tmp_path: Path) -> None:
    outside = ["--scheduler-address=127.0.0.1:7001", "--scheduler-address=127.0.0.1:7002"]
    children = {
        each.name: each for each in plan(tmp_path, "--schedulers=2", CACHE, *outside).children
    }
    addresses = [f"unix:{tmp_path}/scheduler-{number}.sock" for number in (0, 1)]
    for number in (0, 1):
        child = children[f"nereid_scheduler {number}"]
        assert child.stage == 1
        own = [addresses[number], f"127.0.0.1:700{number + 1}"]
        assert flags_of(child, "scheduler-address") == own
        assert flags_of(child, "scheduler-name") == [f"scheduler-{number}"]
        assert flags_of(child, "scheduler-peers") == [",".join(addresses)]
        assert flags_of(child, "cache-address") == [f"unix:{tmp_path}/cache.sock"]
    for name in ("nereid_gateway 0", "nereid_executor 0"):
        assert flags_of(children[name], "scheduler-address") == [",".join(addresses)]


@pytest.mark.parametrize(
    ("flags", "errors"),
    [
        (
            (
                *("--schedulers=2", "--join=scheduler"),
                *("--scheduler-address=127.0.0.1:1", "--lazy-loading"),
            ),
            (
                *("--join=scheduler: one process", "--scheduler-address: given 1 times"),
                "--lazy-loading:",
            ),
        ),
        (("--scheduler-name=mine",), ("--schedulers sets them",)),
        (("--gateways=2", "--join=scheduler"), ("--join=scheduler: one process has one",)),
        (("--gateways=2", "--grpc-engine=grpcio"), ("--grpc-engine=grpcio: shares no port",)),
        (("--join=all",), ("executors have processes of their own",)),
        ((CACHE, "--cache-address=h:1"), ("--cache-config and --cache-address exclude",)),
        ((CACHE, "--response-cache-byte-size=9"), ("--cache-config says it all",)),
        (("--http-port=9", "--grpc-port=9"), ("cannot listen on 0.0.0.0:9 twice",)),
    ],
)
def test_what_cannot_be_served_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    errors: tuple[str, ...],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        plan(tmp_path, *flags)
    printed = capsys.readouterr().err
    assert all(error in printed for error in errors), printed


def test_flags_of_tritons_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = plan(tmp_path, "--response-cache-byte-size=1048576", "--host-policy=x")
    assert planned.children[0].secrets["NEREID_CACHE_CONFIG"] == '["local,size=1048576"]'
    assert "taken from Triton, to no effect: --host-policy" in capsys.readouterr().err


def test_a_configuration_file_has_flags_of_all_services(tmp_path: Path) -> None:
    flags = [
        "join=none",
        "model-control-mode=explicit",
        "http-restricted-api=health:k=v",
        "cpu-cores=3",
    ]
    keys = [
        'join = "none"',
        'model-control-mode = "explicit"',
        'http-restricted-api = ["health:k=v"]',
        "cpu-cores = 3",
    ]
    file = tmp_path / "nereid.toml"
    file.write_text("\n".join(keys))
    assert plan(tmp_path, f"--config={file}") == plan(tmp_path, *(f"--{each}" for each in flags))


def test_children_have_the_token_of_the_start(tmp_path: Path) -> None:
    """A scheduler that follows the file would refuse those that have a role's token."""
    file = tmp_path / "token"
    token = new_token()
    file.write_text(f"{token}\naccept {new_token()}\n")
    made = plan(tmp_path, "--join=none", f"--mesh-token-file={file}")
    assert pickle.loads(pickle.dumps(made)).credentials is not None
    for child in made.children:
        assert flags_of(child, "mesh-token-file") in ([], [""])
        assert token not in str(child.argv)
    (scheduler,) = (child for child in made.children if "scheduler" in child.name)
    assert token in scheduler.secrets.values()
