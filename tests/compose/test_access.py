"""Clients with and without rights, and secrets that are replaced while clients call."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.compose.keys import CLIENT, LESSER, OPERATOR, headers
from tests.compose.load import ask, clients, load
from tests.compose.models import CACHED, PLAIN
from tests.compose.stack import Stack
from tests.support.mesh.mesh import until

# Prints how a call ends that has a token of the role gateway.
_CALL = """
import asyncio
from nereid.core.methods import SCHEDULER
from nereid.mesh_auth.credentials import Credentials
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken
from nereid.rpc import ChannelOptions, RpcError, SocketChannel
async def main():
    credentials = Credentials(Role.GATEWAY, MeshToken({token!r}).key(Role.GATEWAY))
    channel = SocketChannel({address!r}, ChannelOptions(credentials=credentials.metadata))
    try:
        await channel.unary(SCHEDULER + "ServerReady", b"", timeout_s=10)
        print("accepted")
    except RpcError as error:
        print(error.status.name)
    await channel.close()
asyncio.run(main())
"""
_NEW = "nereid_of-the-same-client-from-today"


def _status(stack: Stack, path: str, key: str, data: bytes | None = None) -> int:
    url = f"http://{stack.address('gateway', 8000)}/{path}"
    request = urllib.request.Request(url, data, headers(key))
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


async def _until_status(stack: Stack, key: str, status: int) -> None:
    def has_it() -> bool:
        return _status(stack, "v2", key) == status

    await asyncio.to_thread(until, has_it, f"the status {status}")


async def _refusal(module: Any, client: Any, model: str, key: str) -> str:
    with pytest.raises(InferenceServerException) as caught:
        await ask(module, client, model, 3, key=key)
    return str(caught.value.status()).removeprefix("StatusCode.")


async def test_a_client_has_the_rights_of_its_key(stack: Stack) -> None:
    async with clients(*stack.edges()) as pairs:
        for number, (module, client) in enumerate(pairs):
            await ask(module, client, CACHED, 3)
            await ask(module, client, PLAIN, 3, key=LESSER)
            refused, unknown = (("403", "401"), ("PERMISSION_DENIED", "UNAUTHENTICATED"))[number]
            assert await _refusal(module, client, CACHED, LESSER) == refused
            assert await _refusal(module, client, PLAIN, "") == unknown
            assert await _refusal(module, client, PLAIN, "nereid_of-nobody") == unknown


def test_operators_calls_need_an_operators_key(stack: Stack) -> None:
    calls = [("console/facts", None), ("v2/repository/index", b"{}")]
    for path, data in calls:
        assert [_status(stack, path, key, data) for key in ("", CLIENT)] == [401, 403], path
        assert _status(stack, path, OPERATOR, data) == 200, path
    assert _status(stack, "v2/health/ready", "") == 200


async def test_a_key_is_replaced_under_load(stack: Stack) -> None:
    async with load(*stack.edges()) as running, clients(*stack.edges()) as pairs:
        await running.more(100)
        others = {key: [key] for key in (LESSER, OPERATOR)}
        stack.keys.write({CLIENT: [CLIENT, _NEW], **others})
        await _until_status(stack, _NEW, 200)
        running.key = _NEW
        await running.more(100)
        stack.keys.write({CLIENT: [_NEW], **others})
        await _until_status(stack, CLIENT, 401)
        await running.more(100)
        for (module, client), status in zip(pairs, ("401", "UNAUTHENTICATED"), strict=True):
            assert await _refusal(module, client, PLAIN, CLIENT) == status
        stack.keys.write({CLIENT: [CLIENT, _NEW], **others})
        await _until_status(stack, CLIENT, 200)
        running.key = CLIENT
        await running.more(100)
    assert running.failures == []


async def test_redis_password_is_replaced_under_load(stack: Stack) -> None:
    def password() -> str:
        return stack.python("cache", "print(open('/run/nereid/redis/password').read())")

    former = password()
    remove = "import os, glob; [os.remove(each) for each in glob.glob('/run/nereid/redis/*')]"
    async with load(*stack.edges()) as running:
        await running.more(100)
        for words in (
            ("run", "--rm", "--entrypoint", "python", "secrets", "-c", remove),
            ("run", "--rm", "secrets"),
            ("restart", "redis", "cache"),
        ):
            await asyncio.to_thread(stack.compose, *words)
        await asyncio.to_thread(stack.up)
        assert await asyncio.to_thread(password) != former
        hits = f'nv_cache_num_hits_per_model{{model="{CACHED}",version="1"}}'
        before = await asyncio.to_thread(stack.metrics)
        await running.more(400)
        assert (await asyncio.to_thread(stack.metrics))[hits] > before[hits]
    assert running.failures == []


async def test_the_meshs_token_is_replaced_under_load(stack: Stack) -> None:
    """Services that start afterwards know the new token, and no other is accepted."""

    def token(service: str, folder: str) -> str:
        return stack.python(service, f"print(open('/run/nereid/{folder}/token').read())")

    stack.up(executors=2)
    former = token("gateway", "gateway")
    async with load(*stack.edges()) as running:
        await running.more(100)
        await asyncio.to_thread(stack.compose, "run", "--rm", "secrets", "--replace-mesh-token")
        await running.more(100)
        assert await asyncio.to_thread(token, "gateway", "gateway") != former
        executor = (await asyncio.to_thread(stack.containers, "executor"))[0]
        await asyncio.to_thread(stack.docker, "restart", executor)
        await running.more(400)
        call = _CALL.format(address="scheduler:8003", token=former)
        assert await asyncio.to_thread(stack.python, "gateway", call) == "UNAUTHENTICATED"
        call = _CALL.format(address="scheduler:8003", token=token("gateway", "gateway"))
        assert await asyncio.to_thread(stack.python, "gateway", call) == "accepted"
    assert running.failures == []
