"""TLS of our own engine and all clients: what is agreed on, who is refused, files that change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from nereid.rpc import BlockingStream, ChannelOptions, RpcError, SocketChannel
from nereid.rpc.net.tls_files import Tls, TlsFiles
from tests.support.peers.certificates import Authority, Identity, settle
from tests.support.rpc.echo_service import Site, poll_messages, serving
from tests.support.waiting import soon, until

LIMIT_S = 10


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def side(
    identity: Identity | None, root: str = "", *, server: bool = False, name: str | None = None
) -> Tls:
    cert, key = (identity.cert, identity.key) if identity else ("", "")
    files = TlsFiles(cert=cert, key=key, root=root, alpn="h2")
    return Tls(files, server=server, server_name=name)


async def echo(address: str, tls: Tls | None, message: bytes = b"x") -> bytes:
    channel = SocketChannel(address, ChannelOptions(tls=tls))
    try:
        return await channel.unary("/test/Echo", message, timeout_s=LIMIT_S)
    finally:
        await channel.close()


def talk(address: str, tls: Tls | None, message: bytes = b"y") -> bytes | None:
    stream = BlockingStream(address, "/test/Chat", timeout_s=LIMIT_S, tls=tls)
    try:
        stream.send(message)
        return stream.receive()
    finally:
        stream.close()


def talk_polling(address: str, tls: Tls | None, message: bytes) -> list[bytes]:
    stream = BlockingStream(
        address, "/test/Chat", timeout_s=LIMIT_S, tls=tls, background_keepalive=False
    )
    try:
        stream.send(message)
        return poll_messages(stream)
    finally:
        stream.close()


async def served(address: str, root: str) -> str:
    """The serial number of the certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return str(shown)


@pytest.mark.parametrize("mutual", [False, True])
async def test_our_clients(mutual: bool, site: Site, ours: Authority) -> None:
    server = side(ours.identity(), ours.root if mutual else "", server=True)
    client = ours.identity("client", files="client") if mutual else None
    async with serving("own", site, tls=server) as (_, address):
        big = bytes(3_000_000)
        assert await echo(address, side(client, ours.root), big) == big
        assert await asyncio.to_thread(talk, address, side(client, ours.root), big) == big
        polled = await asyncio.to_thread(talk_polling, address, side(client, ours.root), big)
        assert polled == [big]


async def test_refused_certificates_and_the_reasons(
    site: Site, ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = side(ours.identity(), ours.root, server=True)
    stranger = theirs.identity("client", files="client")
    known = side(ours.identity("client", files="client"), ours.root)
    refused = [
        (side(None, ours.root), "did not return a certificate", "refused our certif"),
        (side(stranger, ours.root), "verify failed: unable to get local issuer", "refused our"),
        # Who does not trust the server goes first.
        (side(None, theirs.root), "unknown ca", "certificate verify failed: "),
        (side(None), "unknown ca", "certificate verify failed: "),
        (None, "wrong version number", "connection"),
    ]
    for tls, why, text in refused:
        # A server for each, since it logs one such line at a time.
        async with serving("own", site, tls=server) as (_, address):
            caplog.clear()
            with pytest.raises(RpcError, match=text):
                await echo(address, tls)
            with pytest.raises(RpcError, match=text):
                await asyncio.to_thread(talk, address, tls)
            await until(lambda why=why: why in caplog.text)
            assert f"{address} refused the TLS connection of 127.0.0.1:" in caplog.text
            # The others go on.
            assert await echo(address, known) == b"x"


@pytest.mark.parametrize(
    ("valid_days", "why"),
    [((-9, -2), "certificate has expired"), ((2, 9), "certificate is not yet valid")],
    ids=["expired", "not yet valid"],
)
async def test_certificates_of_another_time_are_refused_until_they_are_renewed(
    site: Site,
    ours: Authority,
    caplog: pytest.LogCaptureFixture,
    valid_days: tuple[int, int],
    why: str,
) -> None:
    # Files are read again once all of them are old enough to be complete.
    os.utime(ours.root, (1, 1))
    outdated = side(ours.identity("client", files="outdated", valid_days=valid_days), ours.root)
    known = side(ours.identity("client", files="client"), ours.root)
    identity = ours.identity()
    async with serving("own", site, tls=side(identity, ours.root, server=True)) as (_, address):
        with pytest.raises(RpcError, match="refused our certif"):
            await echo(address, outdated)
        await until(lambda: why in caplog.text)
        # The same processes, whose files are renewed.
        ours.identity("client", files="outdated")
        assert await echo(address, outdated) == b"x"
        ours.identity(valid_days=valid_days)
        settle(identity, 50)
        with pytest.raises(RpcError, match=f"certificate verify failed: {why}"):
            await echo(address, known)
        ours.identity()
        settle(identity, 40)
        assert await echo(address, known) == b"x"


async def test_revoked_certificates_are_refused_once_a_list_names_them(
    site: Site, ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    os.utime(ours.root, (1, 1))
    stolen = ours.identity("client", files="stolen")
    known = ours.identity("client", files="known")
    trusted = Path(ours.root).read_bytes()
    roots = Path(ours.root).with_name("roots.pem")

    def list_revoked(content: bytes, age_s: int) -> None:
        roots.write_bytes(content)
        os.utime(roots, (1, age_s))

    list_revoked(trusted + ours.revoke(), 90)
    server = side(ours.identity(), str(roots), server=True)
    async with serving("own", site, tls=server) as (_, address):
        # With tickets for later sessions, if the server gives any.
        thief = side(stolen, ours.root)
        assert await echo(address, thief) == await echo(address, side(known, ours.root)) == b"x"
        list_revoked(trusted + ours.revoke(stolen), 80)
        with pytest.raises(RpcError, match="refused our certif"):
            await echo(address, thief)
        await until(lambda: "certificate revoked" in caplog.text)
        assert await echo(address, side(known, ours.root)) == b"x"
        # A list that nobody renews protects from nothing.
        list_revoked(trusted + ours.revoke(days=-1), 70)
        with pytest.raises(RpcError, match="refused our certif"):
            await echo(address, side(known, ours.root))
        # A foreign list is not the authority's.
        list_revoked(trusted + theirs.revoke(), 60)
        with pytest.raises(RpcError, match="refused our certif"):
            await echo(address, side(known, ours.root))
        list_revoked(trusted, 50)
        assert await echo(address, thief) == b"x"


async def test_a_client_refuses_a_revoked_server(site: Site, ours: Authority) -> None:
    server = ours.identity()
    roots = Path(ours.root).with_name("roots.pem")
    roots.write_bytes(Path(ours.root).read_bytes() + ours.revoke(server))
    async with serving("own", site, tls=side(server, server=True)) as (_, address):
        with pytest.raises(RpcError, match="certificate verify failed: certificate revoked"):
            await echo(address, side(None, str(roots)))
        assert await echo(address, side(None, ours.root)) == b"x"


async def test_grpcio_reads_no_revocation_lists(site: Site, ours: Authority) -> None:
    identity = ours.identity()
    roots = Path(ours.root).with_name("roots.pem")
    roots.write_bytes(Path(ours.root).read_bytes() + ours.revoke())
    with pytest.raises(OSError, match="cannot read the revocation lists"):
        async with serving("grpcio", site, tls=side(identity, str(roots), server=True)):
            pass


async def test_certificates_renewed_under_load_fail_no_call(
    site: Site, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    os.utime(ours.root, (1, 1))
    identity = ours.identity()
    client = ours.identity("client", files="client")
    tls = side(client, ours.root)
    done = 0
    async with serving("own", site, tls=side(identity, ours.root, server=True)) as (_, address):
        lasting = SocketChannel(address, ChannelOptions(tls=tls))

        async def call(renewing: asyncio.Task[None]) -> None:
            nonlocal done
            while not renewing.done():
                assert await lasting.unary("/test/Echo", b"old", timeout_s=LIMIT_S) == b"old"
                assert await echo(address, tls) == b"x"
                done += 1

        async def renew() -> None:
            for age_s in range(90, 60, -3):
                ours.identity()
                settle(identity, age_s)
                ours.identity("client", files="client")
                settle(client, age_s)
                before = done
                await until(lambda before=before: done > before)

        renewing = asyncio.create_task(renew())
        await asyncio.gather(renewing, *(call(renewing) for _ in range(4)))
        await lasting.close()
    # Both sides, ten times each.
    assert caplog.text.count("TLS files were read again") > 10


async def test_the_servers_name_is_checked(site: Site, ours: Authority) -> None:
    server = side(ours.identity("scheduler.mesh"), server=True)
    async with serving("own", site, tls=server) as (_, address):
        with pytest.raises(RpcError, match="certificate verify failed: IP address mismatch"):
            await echo(address, side(None, ours.root))
        with pytest.raises(RpcError, match="certificate verify failed: IP address mismatch"):
            await asyncio.to_thread(talk, address, side(None, ours.root))
        named = side(None, ours.root, name="scheduler.mesh")
        assert await echo(address, named) == b"x"
        assert await asyncio.to_thread(talk, address, named) == b"y"


async def test_old_tls_and_connections_without_h2_are_refused(site: Site, ours: Authority) -> None:
    async with serving("own", site, tls=side(ours.identity(), server=True)) as (_, address):
        host, _, port = address.rpartition(":")
        plain = ssl.create_default_context(cafile=ours.root)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=plain)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(1), LIMIT_S) == b""
        writer.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(ours.root)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError, match="."):  # noqa: RUF043 (any text)
            await asyncio.open_connection(host, int(port), ssl=old)


async def test_a_tls_client_on_a_clear_port_ends_soon(site: Site) -> None:
    async with serving("own", site) as (_, address), asyncio.timeout(LIMIT_S):
        with pytest.raises(RpcError, match="cannot connect"):
            await echo(address, side(None))


async def test_new_files_are_for_new_connections_and_bad_ones_for_none(
    site: Site, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    identity = ours.identity()
    server = side(identity, server=True)
    async with serving("own", site, tls=server) as (_, address):
        first = await served(address, ours.root)
        lasting = SocketChannel(address, ChannelOptions(tls=side(None, ours.root)))
        held = asyncio.ensure_future(lasting.unary("/test/Hold", b"x"))
        await soon(site.seen)
        # Half of a pair: the new chain, and still the old key.
        kept = shutil.copy(identity.key, f"{identity.key}.kept")
        ours.identity()
        new_key = shutil.copy(identity.key, f"{identity.key}.new")
        Path(kept).replace(identity.key)
        settle(identity, 50)
        assert await served(address, ours.root) == first
        assert await served(address, ours.root) == first
        assert caplog.text.count("cannot be used, keeping the old") == 1
        # Its other half.
        Path(new_key).replace(identity.key)
        settle(identity, 40)
        second = await served(address, ours.root)
        assert second != first
        assert "TLS files were read again" in caplog.text
        # Another, whose writer may not be done.
        ours.identity()
        settle(identity, 0)
        assert await served(address, ours.root) == second
        Path(identity.cert).unlink()
        os.utime(identity.key, (1, 1))
        assert await served(address, ours.root) == second
        assert caplog.text.count("cannot be used, keeping the old") == 2
        ours.identity()
        assert await served(address, ours.root) not in (first, second)
        # None of which the old connection noticed.
        site.calls[0].reply(b"still")
        assert await held == b"still"
        await lasting.close()


async def test_a_client_that_stalls_is_cut_off(site: Site, ours: Authority) -> None:
    identity = ours.identity()
    files = TlsFiles(cert=identity.cert, key=identity.key, alpn="h2")
    tls = Tls(files, server=True, handshake_timeout_s=2)
    async with serving("own", site, tls=tls) as (_, address):
        host, _, port = address.rpartition(":")
        stalled = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        stalled[0][1].write(b"\x16\x03\x01\x02\x00\x01")
        assert await echo(address, side(None, ours.root)) == b"x"
        async with asyncio.timeout(LIMIT_S):
            for reader, writer in stalled:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()


async def test_a_server_that_ends_waits_for_no_handshake(site: Site, ours: Authority) -> None:
    async with serving("own", site, tls=side(ours.identity(), server=True)) as (server, address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        # A whole handshake behind it: the server has seen the first by then.
        assert await echo(address, side(None, ours.root)) == b"x"
        async with asyncio.timeout(5):
            await server.drain(60)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_process_out_of_files_accepts_again_when_it_has_some(
    site: Site, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("own", site, tls=side(ours.identity(), server=True)) as (_, address):
        host, _, port = address.rpartition(":")
        with socket.socket() as waiting:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            # The lowest that is free is the highest that there may be.
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), hard))
            try:
                waiting.connect((host, int(port)))
                await until(lambda: "accepts no connections for now" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await echo(address, side(None, ours.root)) == b"x"


def lowest_free() -> int:
    free = os.dup(0)
    os.close(free)
    return free


@pytest.mark.parametrize("flaw", ["missing", "empty", "other key", "locked key"])
def test_files_that_cannot_be_used(ours: Authority, flaw: str) -> None:
    identity = ours.identity()
    if flaw == "missing":
        Path(identity.key).unlink()
    elif flaw == "empty":
        Path(identity.cert).write_bytes(b"")
    elif flaw == "other key":
        shutil.copy(ours.identity(files="other").key, identity.key)
    else:
        lock(identity.key)
    with pytest.raises(OSError, match="."):  # noqa: RUF043 (OpenSSL's text)
        side(identity, server=True)


def lock(path: str) -> None:
    from cryptography.hazmat.primitives import serialization as pem  # noqa: PLC0415

    key = pem.load_pem_private_key(Path(path).read_bytes(), None)
    locked = key.private_bytes(
        pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
    )
    Path(path).write_bytes(locked)
