"""One connected tree for each sampled request, through the real mesh to a real OTLP receiver."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from nereid.version import version
from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.traced import (
    OTHER,
    SAMPLED,
    SHAPE,
    SPAN,
    TRACE,
    G,
    S,
    ask_grpc,
    ask_http,
    flags,
)
from tests.support.models.e2e_models import make_repository
from tests.support.peers.otlp_receiver import Receiver, Tree, receiver

pytestmark = pytest.mark.slow


def whole(tree: Tree) -> bool:
    return tree.shape() == SHAPE


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


@pytest.mark.parametrize("join", [pytest.param("scheduler", marks=pytest.mark.nightly), "none"])
def test_a_traceparent_becomes_one_tree_through_all_services(
    repository: Path, tmp_path: Path, collector: Receiver, join: str
) -> None:
    flagged = flags(collector.url, "mode=opentelemetry")
    with running(repository, tmp_path / "log", f"--join={join}", *flagged) as mesh:
        ask_grpc(mesh)
        ask_grpc(mesh, headers={"traceparent": f"00-{'1' * 32}-{SPAN}-00"})
        http_port, grpc_port = (int(each.rpartition(":")[2]) for each in (mesh.http, mesh.grpc))
        ask_http(mesh, headers=SAMPLED | {"tracestate": "a=1,b=2"}, request_id="seven")
        other = {"traceparent": SAMPLED["traceparent"].replace(TRACE, OTHER), "tracestate": "c=3"}
        ask_grpc(mesh, headers=other)
        trees = collector.wait(lambda trees: len(trees) == 2 and all(map(whole, trees.values())))
    # Neither the request without traceparent nor the unsampled one left anything.
    assert set(collector.trees()) == {TRACE, OTHER}
    over_grpc = trees[OTHER].one("InferRequest")
    assert over_grpc.parent == SPAN
    client_port = over_grpc.attributes.pop("client.port")
    assert over_grpc.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
        "server.address": "127.0.0.1",
        "server.port": grpc_port,
        "client.address": "127.0.0.1",
        "nereid.protocol": "grpc",
        "triton.model_name": "doubler",
    }
    assert client_port > 0
    tree = trees[TRACE]
    root, model, execute = tree.one("InferRequest"), tree.one("doubler"), tree.one("execute")
    assert root.parent == SPAN
    # The client's own state reaches every service.
    assert {span.state for span in tree.spans} == {"a=1,b=2"}
    assert {span.state for span in trees[OTHER].spans} == {"c=3"}
    kinds = {
        "InferRequest": "server",
        "doubler": "server",
        "execute": "client",
        "compute": "server",
    }
    assert {span.name: span.kind for span in tree.spans if span.kind != "internal"} == kinds
    for span in tree.spans:
        assert span.resource["service.version"] == version()
        assert span.resource["service.instance.id"]
    assert root.attributes.pop("client.port") > 0
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
        "url.path": "/v2/models/doubler/infer",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": http_port,
        "client.address": "127.0.0.1",
        "nereid.protocol": "http",
        "triton.request_id": "seven",
        "triton.model_name": "doubler",
    }
    assert model.attributes == {
        "triton.model_name": "doubler",
        "triton.model_version": 1,
        "triton.request_id": "seven",
        "nereid.attempts": 1,
    }
    batch = tree.one("batch")
    assert batch.links == [(TRACE, execute.id)]
    assert execute.links == [(TRACE, batch.id)]
    assert batch.attributes["nereid.batch.size"] == 1
    assert all(span.error is None for span in tree.spans)
    for span in tree.spans:
        parent = tree.parent(span)
        # What is below the scheduler's spans was measured by other clocks of the same machine.
        if parent is not None:
            assert parent.start_ns - 1_000_000 <= span.start_ns <= span.end_ns
            assert span.end_ns <= parent.end_ns + 1_000_000


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        ("doubler", [1, 9], "unexpected shape for input 'INPUT0'"),
        ("nobody", [1, 8], "unknown model: 'nobody'"),
    ],
)
def test_a_refused_request_shows_where_and_why(
    mesh_with_traces: tuple[Mesh, Receiver], model: str, shape: list[int], words: str
) -> None:
    mesh, collector = mesh_with_traces
    trace = f"{len(model):032x}"
    wrong = httpclient.InferInput("INPUT0", shape, "FP32")
    wrong.set_data_from_numpy(np.zeros(shape, np.float32))
    with (
        httpclient.InferenceServerClient(mesh.http) as client,
        pytest.raises(InferenceServerException, match=words),
    ):
        client.infer(model, [wrong], headers={"traceparent": f"00-{trace}-{SPAN}-01"})
    tree = collector.wait(lambda trees: trace in trees and len(trees[trace].spans) == 4)[trace]
    assert tree.shape() == {span for span in SHAPE if span[0] == G} | {(S, model, "InferRequest")}
    refused = tree.one(model)
    assert refused.error is not None
    assert words in refused.error
    assert refused.error == tree.one("InferRequest").error
    assert refused.attributes == {"triton.model_name": model, "nereid.attempts": 0}


@pytest.fixture(scope="module")
def mesh_with_traces(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Mesh, Receiver]]:
    root = tmp_path_factory.mktemp("refusals")
    repository = make_repository(root / "repository")
    with receiver() as collector:
        flagged = flags(collector.url, "mode=opentelemetry")
        with running(repository, root / "log", *flagged) as mesh:
            yield mesh, collector
