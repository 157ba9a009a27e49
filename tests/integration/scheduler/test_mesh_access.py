"""Rogue members at a mesh port: without credentials, with another role's, with a replay, with
certificates. Refused, and logged once.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from nereid.core.methods import EXCHANGE_PATH, EXECUTE_PATH, INFER_PATH, JOIN_PATH, SCHEDULER
from nereid.mesh_auth.credentials import Credentials
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.mesh_auth.token_file import token_lines
from nereid.mesh_auth.tokens import MeshToken
from nereid.pb import kserve_pb2 as kserve
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import ChannelOptions, RpcError, SocketChannel, Status
from nereid_cache.service import CacheService, make_store
from nereid_cache.settings import CacheSettings
from nereid_scheduler.service import SchedulerService
from nereid_scheduler.settings import Settings
from tests.support.peers.certificates import Authority
from tests.support.scheduler.scheduler_world import LIMIT_S

TOKEN = "correct horse battery staple"
LOAD = SCHEDULER + "RepositoryModelLoad"
LOAD_REQUEST = kserve.RepositoryModelLoadRequest(model_name="doubler").SerializeToString()


@contextlib.asynccontextmanager
async def scheduler(
    repository: Path, address: str = "127.0.0.1:0", **settings: object
) -> AsyncIterator[str]:
    """The address of a scheduler that loads models on request."""
    service = SchedulerService(
        Settings(
            model_repository=(str(repository),),
            scheduler_address=(address,),
            model_control_mode="explicit",
            no_executor_timeout_secs=0.0,
            **settings,  # type: ignore[arg-type]
        )
    )
    await service.start()
    try:
        yield service.addresses[0]
    finally:
        await service.drain(0)


async def outcome(
    address: str,
    path: str,
    settings: MeshAccessSettings,
    role: Role,
    metadata: tuple[tuple[str, str], ...] = (),
    message: bytes = LOAD_REQUEST,
) -> RpcError | None:
    """How one call ends that a member with these settings makes; None: well."""
    channel = SocketChannel(address, settings.mesh_channel(address, role, ChannelOptions()))
    try:
        await channel.unary(path, message, timeout_s=LIMIT_S, metadata=metadata)
    except RpcError as error:
        return error
    finally:
        await channel.close()
    return None


async def stream_outcome(
    address: str, path: str, settings: MeshAccessSettings, role: Role, message: bytes = b""
) -> RpcError | str:
    """How the scheduler takes a stream that begins with this message."""
    ended: asyncio.Future[RpcError | str] = asyncio.get_running_loop().create_future()

    def on_open() -> None:
        if not ended.done():
            ended.set_result("accepted")

    def on_close(error: RpcError | None) -> None:
        if not ended.done():
            ended.set_result(error or "ended")

    channel = SocketChannel(address, settings.mesh_channel(address, role, ChannelOptions()))
    stream = channel.stream(path, on_message=_ignore, on_close=on_close, on_open=on_open)
    stream.send(message)
    try:
        return await asyncio.wait_for(ended, LIMIT_S)
    finally:
        await channel.close()


def _ignore(_: bytes) -> None:
    pass


def hello(name: str = "rogue") -> bytes:
    return pb.ExecutorEvent(hello=pb.Hello(name=name, backends=["onnxruntime"])).SerializeToString()


def token_of(role: Role) -> MeshAccessSettings:
    return MeshAccessSettings(mesh_token=MeshToken(TOKEN).role_token(role))


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "was refused" in line]


async def test_a_token_is_replaced_while_the_scheduler_runs(
    repository: Path, tmp_path: Path
) -> None:
    new = "another horse, another battery"
    file = tmp_path / "token"

    def write(*texts: str) -> None:
        file.write_text(token_lines(texts))
        # As old as one whose writer is done.
        os.utime(file, (1_700_000_000, 1_700_000_000 + len(texts)))

    async def is_accepted(text: str) -> bool:
        settings = MeshAccessSettings(mesh_token=text)
        error = await outcome(address, LOAD, settings, Role.OPERATOR)
        return error is None or error.status is not Status.UNAUTHENTICATED

    async def reached(former: bool, present: bool) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await is_accepted(TOKEN), await is_accepted(new)) != (former, present):
                await asyncio.sleep(0.05)

    write(TOKEN)
    async with scheduler(repository, mesh_token_file=str(file)) as address:
        await reached(former=True, present=False)
        write(new, TOKEN)
        await reached(former=True, present=True)
        write(new)
        await reached(former=False, present=True)


async def test_rogues_without_a_token_are_refused_and_logged_once(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = MeshAccessSettings()
    async with scheduler(repository, mesh_token=TOKEN) as address:
        for _ in range(3):
            for path in (JOIN_PATH, EXECUTE_PATH, INFER_PATH):
                refused = await stream_outcome(address, path, nothing, Role.EXECUTOR, hello())
                assert isinstance(refused, RpcError)
                assert refused.status is Status.UNAUTHENTICATED
                assert "--mesh-token" in refused.message
            error = await outcome(address, LOAD, nothing, Role.OPERATOR)
            assert error is not None
            assert error.status is Status.UNAUTHENTICATED
    assert len(refusals(caplog)) == 1
    assert not any("joined" in line for line in caplog.messages)


async def test_an_executors_token_opens_neither_control_nor_the_gateways_part(
    repository: Path,
) -> None:
    ours = token_of(Role.EXECUTOR)
    async with scheduler(repository, mesh_token=TOKEN) as address:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload", "LogSettings", "Metrics"):
            error = await outcome(address, SCHEDULER + method, ours, Role.EXECUTOR)
            assert error is not None
            assert error.status is Status.PERMISSION_DENIED, method
        # It cannot pose as another role either: it has no key for one.
        forged = Credentials(Role.OPERATOR, ours.read_mesh_token().key(Role.EXECUTOR) or b"")  # type: ignore[union-attr]
        error = await outcome(
            address, LOAD, MeshAccessSettings(), Role.OPERATOR, forged.metadata(LOAD)
        )
        assert error is not None
        assert error.status is Status.UNAUTHENTICATED
        assert "another token" in error.message


async def test_each_role_may_do_its_own(repository: Path) -> None:
    ready = SCHEDULER + "ServerReady"
    for role in (Role.GATEWAY, Role.OPERATOR):
        # A role's own token, and the mesh's.
        for settings in (token_of(role), MeshAccessSettings(mesh_token=TOKEN)):
            async with scheduler(repository, mesh_token=TOKEN) as address:
                assert await outcome(address, ready, settings, role, message=b"") is None
    async with scheduler(repository, mesh_token=TOKEN) as address:
        for path, role in ((JOIN_PATH, Role.EXECUTOR), (INFER_PATH, Role.GATEWAY)):
            result = await stream_outcome(address, path, token_of(role), role, hello("one"))
            assert result == "accepted"


async def test_certificates_give_roles(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Authority(tmp_path / "tls")

    def certified(*names: str) -> MeshAccessSettings:
        identity = ours.identity(*names, files=names[0])
        return MeshAccessSettings(
            mesh_tls_cert=identity.cert,
            mesh_tls_key=identity.key,
            mesh_tls_root=ours.root,
        )

    server = certified("scheduler.test", "127.0.0.1")
    files = {
        "mesh_tls_cert": server.mesh_tls_cert,
        "mesh_tls_key": server.mesh_tls_key,
        "mesh_tls_root": ours.root,
    }
    ready = SCHEDULER + "ServerReady"
    gateway, executor = certified("gateway-1.test"), certified("executor-7.test")
    unnamed = certified("mesh.test")
    async with scheduler(repository, **files) as address:
        assert await outcome(address, ready, gateway, Role.GATEWAY, message=b"") is None
        joined = await stream_outcome(address, JOIN_PATH, executor, Role.EXECUTOR, hello("one"))
        assert joined == "accepted"
        for rogue, path, why in (
            (gateway, JOIN_PATH, "role is gateway"),
            (executor, LOAD, "role is executor"),
            (unnamed, JOIN_PATH, "names no role"),
            (unnamed, LOAD, "names no role"),
        ):
            for _ in range(2):
                error = await outcome(address, path, rogue, Role.EXECUTOR)
                assert error is not None
                assert error.status is Status.PERMISSION_DENIED
                assert why in error.message
    assert len(refusals(caplog)) == 3
    async with scheduler(repository, **files, mesh_tls_any_role=True) as address:
        for member in (unnamed, executor):
            assert await outcome(address, ready, member, Role.GATEWAY, message=b"") is None
    # With both, the token decides: one certificate will do for all.
    both = replace(server, mesh_token=TOKEN)
    async with scheduler(repository, **files, mesh_token=TOKEN) as address:
        assert await outcome(address, ready, both, Role.GATEWAY, message=b"") is None
        error = await outcome(address, ready, gateway, Role.GATEWAY, message=b"")
        assert error is not None
        assert error.status is Status.UNAUTHENTICATED


async def test_a_private_unix_socket_needs_no_token_and_lets_nobody_else_in(
    repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    async with scheduler(repository, f"unix:{path}") as address:
        assert path.stat().st_mode & 0o777 == 0o600
        ready = SCHEDULER + "ServerReady"
        nothing = MeshAccessSettings()
        assert await outcome(address, ready, nothing, Role.GATEWAY, message=b"") is None
    async with scheduler(repository, f"unix:{path}", mesh_token=TOKEN) as address:
        error = await outcome(address, ready, nothing, Role.GATEWAY, message=b"")
        assert error is not None
        assert error.status is Status.UNAUTHENTICATED


async def test_the_cache_serves_schedulers_alone() -> None:
    settings = CacheSettings(cache_listen="127.0.0.1:0", mesh_token=TOKEN)
    service = CacheService(make_store(settings.store_config()))
    address = await service.listen(settings)
    try:
        for role, status in (
            (Role.EXECUTOR, Status.PERMISSION_DENIED),
            (Role.GATEWAY, Status.PERMISSION_DENIED),
        ):
            refused = await stream_outcome(address, EXCHANGE_PATH, token_of(role), role)
            assert isinstance(refused, RpcError)
            assert refused.status is status
        ours = token_of(Role.SCHEDULER)
        channel = SocketChannel(
            address, ours.mesh_channel(address, Role.SCHEDULER, ChannelOptions())
        )
        opened = asyncio.Event()
        channel.stream(
            EXCHANGE_PATH,
            on_message=_ignore,
            on_close=lambda _: None,
            on_open=opened.set,
        )
        await asyncio.wait_for(opened.wait(), LIMIT_S)
        await channel.close()
    finally:
        await service.close()
