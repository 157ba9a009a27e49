"""Clients of other families against the gateway's ports: grpc-js, curl, nghttp and h2load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.peers.certificates import Authority

LIMIT_S = 60
ROOT = Path(__file__).parents[3]
NPM_FOLDER = ROOT / "build" / "npm"
PACKAGES = ["@grpc/grpc-js@1.14.x", "@grpc/proto-loader@0.8.x"]
REQUESTS = 3000
READY = "/inference.GRPCInferenceService/ServerReady"
INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_FIELDS = ("content-type: application/grpc", "te: trailers")


async def output_of(program: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What a program says, once it has ended well."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    process = await asyncio.create_subprocess_exec(
        found,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


def headers_of(*fields: str) -> list[str]:
    return [part for field in fields for part in ("-H", field)]


@pytest.fixture(params=["clear", "tls"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """The gateway's; with TLS, `root` beside them."""
    if request.param == "clear":
        return {}
    ours = Authority(tmp_path / "ours")
    files = ours.identity()
    return {
        f"{front}_{name}": value
        for front in ("grpc", "http")
        for name, value in {
            "use_ssl": True,
            "server_cert": files.cert,
            "server_key": files.key,
            "root_cert": ours.root,
        }.items()
    }


@pytest.fixture
async def site(flags: dict[str, object]) -> AsyncIterator[GatewaySite]:
    async with gateway_site(**flags) as made:
        yield made


@pytest.fixture
def scheme(flags: dict[str, object]) -> str:
    return "https" if flags else "http"


def body(tmp_path: Path, message: bytes) -> str:
    """A gRPC message as a file."""
    path = tmp_path / "body"
    path.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    return str(path)


def infer_message(size: int) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes(size))
    return request.SerializeToString()


# --- grpc-js


@pytest.fixture(scope="session")
def node_modules() -> str:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    if not (NPM_FOLDER / "node_modules" / "@grpc" / "proto-loader").is_dir():
        NPM_FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(NPM_FOLDER)]
        installed = subprocess.run(
            [*command, *PACKAGES], capture_output=True, text=True, timeout=300, check=False
        )
        if installed.returncode != 0:
            pytest.skip(f"npm cannot install grpc-js: {installed.stderr[-300:]}")
    return str(NPM_FOLDER / "node_modules")


@pytest.mark.slow
async def test_grpc_js(node_modules: str, flags: dict[str, object]) -> None:
    compressing = {"grpc_infer_response_compression_level": "high"}
    async with gateway_site(**compressing, **flags) as site:
        script = Path(__file__).with_name("grpc_js_client.js")
        address = site.grpc.replace("127.0.0.1", "localhost")
        root = [str(flags["grpc_root_cert"])] if flags else []
        env = {**os.environ, "NODE_PATH": node_modules}
        proto = str(ROOT / "protos" / "kserve.proto")
        results = json.loads(await output_of("node", str(script), address, proto, *root, env=env))
        assert results["unary"] == [5, True]
        assert results["big"] == results["gzip"] == [8_000_000, True]
        assert results["many"] == 300
        assert results["unknown"][0] == 5
        assert "unknown model: 'none'" in results["unknown"][1]
        assert results["deadline"][0] == 4
        assert results["cancelled"][0] == 1
        assert results["stream"] == [0, [str(number) for number in range(50)]]
        # The held ones were given up behind the gateway as well.
        async with asyncio.timeout(LIMIT_S):
            for _ in range(2):
                await site.scheduler.cancelled.get()


# --- curl


async def test_curl_speaks_grpc(
    site: GatewaySite, scheme: str, flags: dict[str, object], tmp_path: Path
) -> None:
    """By prior knowledge, or what ALPN agrees on."""
    response = tmp_path / "response"
    how = ["--http2-prior-knowledge"] if scheme == "http" else ["--cacert", flags["grpc_root_cert"]]
    output = await output_of(
        "curl",
        *("-sS", "--max-time", "30", *map(str, how), "-D", "-", "-o", str(response)),
        *("--data-binary", f"@{body(tmp_path, infer_message(3_000_000))}"),
        *headers_of(*GRPC_FIELDS),
        f"{scheme}://{site.grpc}{INFER}",
    )
    assert output.startswith("HTTP/2 200")
    assert "grpc-status: 0" in output
    data = response.read_bytes()
    assert struct.unpack(">BI", data[:5]) == (0, len(data) - 5)
    reply = kserve_pb2.ModelInferResponse.FromString(data[5:])
    assert list(reply.raw_output_contents) == [bytes(3_000_000)]


async def test_curl_offers_http2_to_the_http_port(site: GatewaySite, scheme: str) -> None:
    """An offer to upgrade is passed over, and so is HTTP/2 without asking."""
    url = f"{scheme}://{site.http}/v2/health/ready"
    shown = (
        "-sS",
        "-k",
        "--max-time",
        "30",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{http_version}",
    )
    assert await output_of("curl", *shown, "--http2", url) == "200 1.1"
    with pytest.raises(AssertionError, match="curl: "):
        await output_of("curl", *shown, "--http2-prior-knowledge", f"http://{site.http}/v2")
    assert await output_of("curl", *shown, url, url.replace("ready", "live")) == "200 1.1200 1.1"


# --- nghttp2's tools


@pytest.mark.parametrize(
    "options",
    [
        ["--padding=100"],
        ["--window-bits=10", "--connection-window-bits=12"],
        ["--max-concurrent-streams=5", "--header-table-size=0"],
        ["--header-table-size=1", "--header-table-size=65536", "--encoder-header-table-size=0"],
        ["--no-dep", "--multiply=50"],
        ["--multiply=20", "--weight=256"],
    ],
    ids=lambda options: options[0],
)
async def test_nghttp(site: GatewaySite, scheme: str, tmp_path: Path, options: list[str]) -> None:
    output = await output_of(
        "nghttp",
        *("-v", "-n", "-t", "30", "--no-verify-peer", *options),
        *headers_of(*GRPC_FIELDS),
        *("-d", body(tmp_path, infer_message(100_000))),
        f"{scheme}://{site.grpc}{INFER}",
    )
    asked = int(next((o.partition("=")[2] for o in options if o.startswith("--multiply")), "1"))
    assert len(re.findall(r"grpc-status: 0\b", output)) == asked, output
    assert "recv RST_STREAM" not in output
    assert not re.search(r"recv GOAWAY.*?\n.*error_code=(?!NO_ERROR)", output)


async def test_nghttp_with_more_metadata_than_is_taken(site: GatewaySite, scheme: str) -> None:
    output = await output_of(
        "nghttp",
        *("-v", "--continuation", "--no-verify-peer", "-H:method: POST"),
        *(*headers_of(*GRPC_FIELDS), f"{scheme}://{site.grpc}{READY}"),
    )
    assert re.search(r"grpc-status: 8\b", output), output[-2000:]
    assert "metadata is too large" in output


async def test_nghttp_gets_an_http_status(site: GatewaySite, scheme: str) -> None:
    """A browser's GET is refused in terms that it understands."""
    output = await output_of("nghttp", "-v", "--no-verify-peer", f"{scheme}://{site.grpc}/")
    assert ":status: 405" in output


@pytest.mark.slow
@pytest.mark.parametrize("port", ["grpc", "http"])
async def test_h2load(site: GatewaySite, scheme: str, tmp_path: Path, port: str) -> None:
    """Two thousand streams at once on few connections; HTTP/1.1 on many."""
    if port == "grpc":
        how = ["-c4", "-m500", "-d", body(tmp_path, b""), *headers_of(*GRPC_FIELDS)]
        url = f"{scheme}://{site.grpc}{READY}"
    else:
        how = ["-c100", "--h1"]
        url = f"{scheme}://{site.http}/v2/health/ready"
    output = await output_of("h2load", f"-n{REQUESTS}", *how, url)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    assert counts, output
    assert counts.groups() == (f"{REQUESTS}", "0", "0", "0"), output
