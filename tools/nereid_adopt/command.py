"""The command `nereid adopt`. Exit codes: 0 done, 1 problems or differences, 2 wrong usage."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from nereid.cli.command_parser import CommandParser
from nereid.comparison.rules import parse_rules
from nereid.core.errors import NereidError
from nereid.core.files.json_document import parse_document, read_document
from nereid.core.terminal import print_error, print_lines
from nereid.rpc.net.address import is_address
from nereid.rpc.net.tls_files import Tls, TlsFiles, reason
from nereid_adopt.control import ControlSocket, ask_proxy, default_path
from nereid_perf.endpoint import Endpoint, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.comparison.rules import Rules

SUMMARY: Final = "stand before another server, compare a mesh with it, and turn the traffic over"
_PROGRAM: Final = "nereid adopt"
_DESCRIPTION: Final = """\
Stand before a KServe v2 server as a proxy. The server answers; a mesh gets a copy of each inference
and its responses are compared. `turn` moves a part of the traffic to the mesh, `back` all of it to
the server.
"""
_EPILOG: Final = """\
while it runs:
  nereid adopt report [--json]   what was compared, and what differs
  nereid adopt turn WEIGHT       let the mesh answer WEIGHT % of the requests
  nereid adopt back              let the old server answer all of them
"""
# By protocol of the proxy's ports.
_ALPN: Final = {"http": "http/1.1", "grpc": "h2"}
_SCHEMES: Final = ("http", "https")
_GRPC_SCHEMES: Final = ("grpc", "grpcs")
_CONTROL_COMMANDS: Final = ("turn", "back", "report")


class ServerPorts(NamedTuple):
    """Addresses of one server, and which of its ports have TLS."""

    http: str
    grpc: str
    http_is_secure: bool = False
    grpc_is_secure: bool = False

    @property
    def url(self) -> str:
        """The URL of the HTTP port."""
        return f"{'https' if self.http_is_secure else 'http'}://{self.http}"


def main(argv: Sequence[str]) -> int:
    """Run the proxy, or ask the running one; return the exit code."""
    if argv and argv[0] in _CONTROL_COMMANDS:
        return _control(argv)
    parser = make_parser()
    given = parser.parse_args(argv)
    try:
        old = _ports(given.url, given.grpc)
        new = None if given.to is None else _ports(given.to, given.to_grpc)
        rules = _rules(given.rules)
        own_tls = [_own_tls(given, protocol) for protocol in _ALPN]
        # Unusable files are wrong usage.
        Endpoint("http", "", _client_settings(given)).client_tls()
    except (ValueError, OSError, NereidError) as error:
        parser.error(getattr(error, "message", reason(error)))
    if given.check:
        from nereid_adopt.forecast.check import check_server  # noqa: PLC0415 - only here

        return check_server(old.url, given.ca_file, given.model_repository, as_json=given.json)
    if (new is None) is not bool(given.model_repository):
        parser.error("give either --to, or --model-repository to start a mesh")
    import uvloop  # noqa: PLC0415 - not to ask the running proxy

    try:
        if new is not None:
            return uvloop.run(_run(given, old, new, rules, own_tls))
        with _mesh(given) as started:
            return uvloop.run(_run(given, old, started, rules, own_tls))
    except (OSError, RuntimeError) as error:
        print_error(_PROGRAM, error)
        return 1


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "url", metavar="URL",
        help="the old server's HTTP port: host:port, or https://host:port",
    )  # fmt: skip
    add(
        "--grpc", metavar="HOST:PORT",
        help="its gRPC port, also as grpcs://host:port (default: the port after HTTP's)",
    )  # fmt: skip
    add("--check", action="store_true", help="only say what will differ, and exit")
    add("--to", metavar="HOST:PORT", help="HTTP port of a running mesh")
    add("--to-grpc", metavar="HOST:PORT", help="its gRPC port (default: the port after HTTP's)")
    add(
        "--model-repository", action="append", default=[], metavar="PATH",
        help="start a mesh that serves this repository; may be repeated",
    )  # fmt: skip
    add(
        "--serve-flag", action="append", default=[], metavar="FLAG",
        help="a further flag for the mesh, as --serve-flag=--strict-readiness=false",
    )  # fmt: skip
    add("--address", default="0.0.0.0", help="interface of the proxy (default: all)")
    add("--http-port", type=int, default=9000, help="port for HTTP clients (default: 9000)")
    add("--grpc-port", type=int, default=9001, help="port for gRPC clients (default: 9001)")
    for protocol in _ALPN:
        use, mutual = (
            add(
                f"--{protocol}-use-ssl{suffix}", type=_boolean, nargs="?", const=True,
                default=False, metavar="true|false", help=text,
            )
            for suffix, text in (
                ("", "serve clients over TLS"),
                ("-mutual", "ask clients for their certificate, too"),
            )
        )  # fmt: skip
        files = [
            add(f"--{protocol}-{name}", default="", metavar="PATH", help=text)
            for name, text in (
                ("server-cert", "PEM file of the proxy's certificate chain"),
                ("server-key", "PEM file of its private key"),
                ("root-cert", "PEM file of the certificates that sign clients'"),
            )
        ]
        parser.hide(use, mutual, *files)
    add(
        "--ca-file", default="", metavar="PATH",
        help="PEM file of the certificates that sign the servers' (default: the system's)",
    )  # fmt: skip
    add("--cert-file", default="", metavar="PATH", help="PEM file of our certificate for them")
    add("--key-file", default="", metavar="PATH", help="PEM file of its private key")
    add("--weight", type=_weight, default=0, help="weight of the mesh at the start (default: 0)")
    add(
        "--copies", type=_percent, default=100.0, metavar="PERCENT",
        help="part of the inferences of which the other server gets a copy (default: 100)",
    )  # fmt: skip
    add("--rules", metavar="TEXT|@FILE", help="when outputs count as equal, as 'scores: top-k=5'")
    add(
        "--keep-inputs", choices=("all", "digest", "none"), default="all",
        help="what the report keeps of inputs that lead to differences (default: all)",
    )  # fmt: skip
    queue = add(
        "--queue-mib", type=int, default=64, help="memory for copies that wait (default: 64)"
    )
    copied = add(
        "--max-copy-mib", type=int, default=64, help="larger messages have no copy (default: 64)"
    )
    held = add(
        "--held-mib", type=int, default=256,
        help="memory for requests and responses in flight that are to be copied (default: 256)",
    )  # fmt: skip
    timeout = add(
        "--copy-timeout", type=float, default=30.0, metavar="S", help="of copies (default: 30)"
    )
    add("--json", action="store_true", help="with --check: print one JSON document")
    control = add("--control", default=default_path(), metavar="PATH", help="the control socket")
    parser.hide(queue, copied, held, timeout, control)
    return parser


async def _run(
    given: argparse.Namespace,
    old: ServerPorts,
    new: ServerPorts,
    rules: Rules,
    own_tls: Sequence[Tls | None],
) -> int:
    from nereid.comparison.tally import Redaction, TallyOptions  # noqa: PLC0415 - see main()
    from nereid.process.service_process import freeze_started_objects  # noqa: PLC0415
    from nereid_adopt.copies.process import CopyOptions  # noqa: PLC0415
    from nereid_adopt.running_proxy import Proxy  # noqa: PLC0415

    settings = _client_settings(given)
    http_tls, grpc_tls = (
        (settings if of_old else None, settings if of_new else None)
        for of_old, of_new in (
            (old.http_is_secure, new.http_is_secure),
            (old.grpc_is_secure, new.grpc_is_secure),
        )
    )
    redaction = {"all": Redaction.NONE, "digest": Redaction.DIGEST, "none": Redaction.OMIT}
    proxy = Proxy(
        CopyOptions(
            (old.http, new.http),
            (old.grpc, new.grpc),
            rules,
            TallyOptions(redaction=redaction[given.keep_inputs]),
            given.copy_timeout,
            http_tls,
            grpc_tls,
        ),
        max_queued_bytes=given.queue_mib << 20,
        max_copied_bytes=given.max_copy_mib << 20,
        max_held_bytes=given.held_mib << 20,
        http_tls=own_tls[0],
        grpc_tls=own_tls[1],
    )
    traffic = proxy.site.traffic
    traffic.weight = given.weight
    traffic.copied_percent = given.copies

    def turn(weight: int) -> None:
        traffic.weight = weight
        print_lines([f"{_PROGRAM}: the mesh answers {weight} % of the requests"])

    control = ControlSocket(turn, proxy.document)
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    try:
        await control.open(given.control)
        http, grpc = await proxy.open(
            f"{given.address}:{given.http_port}", f"{given.address}:{given.grpc_port}"
        )
        # In the background; the report has the result.
        proxy.compare_control_calls()
        before = f"before {old.http} and {new.http}"
        freeze_started_objects()
        print_lines([f"{_PROGRAM}: serving HTTP on {http}, gRPC on {grpc}, {before}"])
        await end.wait()
        proxy.end_control_calls()
        print_lines(_lines(await proxy.document()))
    finally:
        control.close()
        await proxy.close()
    return 0


@contextmanager
def _mesh(given: argparse.Namespace) -> Iterator[ServerPorts]:
    """Start a mesh on the repository, on free ports of this host."""
    from nereid.app.mesh import MeshProcess  # noqa: PLC0415 - only here
    from nereid.core.files.temporary_directories import APP, TemporaryDirectory  # noqa: PLC0415

    directory = TemporaryDirectory.make(APP)
    try:
        flags = [
            *(f"--model-repository={path}" for path in given.model_repository),
            *(f"--{name}-port=0" for name in ("http", "grpc", "metrics")),
            *(f"--{name}-address=127.0.0.1" for name in ("http", "grpc")),
            # As in Triton, and nobody but the proxy reaches the mesh.
            "--allow-client-shm=true",
            *given.serve_flag,
        ]
        process = MeshProcess(flags, directory.path / "log", None)
        try:
            http, grpc, _ = process.wait_until_serving()
            yield ServerPorts(http, grpc)
        finally:
            process.end()
    finally:
        directory.release()


def _control(argv: Sequence[str]) -> int:
    parser = CommandParser(f"{_PROGRAM} {argv[0]}", "Ask the running proxy.")
    parser.add_argument("--control", default=default_path(), metavar="PATH")
    if argv[0] == "turn":
        parser.add_argument("weight", type=_weight, help="percent of the requests, 0 to 100")
    if argv[0] == "report":
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv[1:])
    question: dict[str, Any] = {"report": True}
    if argv[0] != "report":
        question = {"turn": 0 if argv[0] == "back" else given.weight}
    try:
        reply = ask_proxy(given.control, question)
    except NereidError as error:
        print_error(_PROGRAM, error.message)
        return 2
    if argv[0] != "report":
        print_lines([f"the mesh answers {reply['weight']} % of the requests"])
        return 0
    if given.json:
        sys.stdout.write(json.dumps(reply, indent=1) + "\n")
    else:
        print_lines(_lines(reply))
    return 1 if reply["unexplained"] or reply["unavailable"] else 0


def _lines(document: dict[str, Any]) -> Iterator[str]:
    from nereid.comparison.tally import text_report  # noqa: PLC0415 - imports numpy

    responses = document["responses"]
    yield (
        f"the mesh answers {document['weight']} %: {responses['old']} calls answered by the old "
        f"server, {responses['new']} by the mesh, {document['failed_over']} of the mesh's by the "
        f"old one instead, {document['failed']} failed"
    )
    if document["not_sampled"]:
        yield f"not copied: {document['not_sampled']}: --copies is {document['copies']:g}"
    for item in document["not_copied"]:
        yield f"not copied: {item['count']} of {item['model']}: {item['reason']}"
    for item in document["changes"]:
        outcome = "same outcome" if item["same_outcome"] else "different outcomes"
        yield f"change: {item['call']}: {item['count']}, {outcome}"
    control_calls = document["control_calls"]
    yield (
        f"metadata, configurations, readiness and statistics of {control_calls['models']} model "
        f"versions: {len(control_calls['differences'])} differences"
        + (f", {control_calls['not_asked']} were not asked" if control_calls["not_asked"] else "")
    )
    for item in control_calls["differences"]:
        whose = f" of {item['model']}" if item["model"] else ""
        yield f"  {item['call']}{whose}: {item['difference']}"
    if control_calls["unavailable"]:
        yield control_calls["unavailable"]
    known = {item["known"] for item in control_calls["differences"]}
    if document["unavailable"]:
        yield document["unavailable"]
        return
    yield from text_report(document["comparison"]).splitlines()
    known |= {
        difference["known"]
        for model in document["comparison"]["models"]
        for difference in model["differences"]
    }
    yield from (f"known: {title}" for title in sorted(known - {""}))
    yield f"{document['unexplained']} kinds of difference are not explained"


def _ports(url: str, grpc: str | None) -> ServerPorts:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"'{url}': expected host:port, http://host:port or https://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or 8000
    is_secure = parts.scheme == "https"
    scheme, found, address = (grpc or f"{host}:{port + 1}").rpartition("://")
    if not is_address(address) or (found and scheme not in _GRPC_SCHEMES):
        raise ValueError(f"'{grpc}': expected host:port, grpc://host:port or grpcs://host:port")
    grpc_is_secure = scheme == "grpcs" if found else is_secure
    return ServerPorts(f"{host}:{port}", address, is_secure, grpc_is_secure)


def _client_settings(given: argparse.Namespace) -> TlsSettings:
    return TlsSettings(given.ca_file, given.cert_file, given.key_file)


def _own_tls(given: argparse.Namespace, protocol: str) -> Tls | None:
    """Return the TLS settings of one of the proxy's ports. May raise ValueError or OSError."""
    use, mutual, cert, key, root = (
        getattr(given, f"{protocol}_{name}")
        for name in ("use_ssl", "use_ssl_mutual", "server_cert", "server_key", "root_cert")
    )
    if not (use or mutual):
        return None
    needed = {"server-cert": cert, "server-key": key, **({"root-cert": root} if mutual else {})}
    for name, path in needed.items():
        if not path:
            raise ValueError(f"--{protocol}-{name} is required with TLS")
    files = TlsFiles(cert=cert, key=key, root=root if mutual else "", alpn=_ALPN[protocol])
    return Tls(files, server=True)


def _rules(text: str | None) -> Rules:
    if text is None:
        return parse_rules({})
    if not text.startswith("@"):
        return parse_rules(text)
    content = read_document(Path(text[1:]))
    is_json = content.lstrip().startswith("{")
    return parse_rules(parse_document(content.encode()) if is_json else content)


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0"}:
        raise argparse.ArgumentTypeError(f"'{text}': expected true or false")
    return text.lower() in {"true", "1"}


def _weight(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"'{text}': expected a whole number from 0 to 100")
    return int(text)


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    # NaN is no number of this range, either.
    if not 0 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"'{text}': expected a number from 0 to 100")
    return percent
