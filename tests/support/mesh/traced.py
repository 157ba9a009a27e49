"""Requests that are traced, and the tree that one of them makes."""

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.mesh.mesh import Mesh

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER = TRACE.replace("0af7", "1af7")
# To be copied: the HTTP client adds to what it is given.
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
G, S, E, C = "nereid-gateway", "nereid-scheduler", "nereid-executor", "nereid-cache"
# Service, span, parent.
SHAPE = {
    (G, "InferRequest", ""),
    (G, "receive", "InferRequest"),
    (G, "send", "InferRequest"),
    (S, "doubler", "InferRequest"),
    (S, "queue", "doubler"),
    (S, "batch", "doubler"),
    (S, "execute", "doubler"),
    (E, "compute", "execute"),
    (E, "compute input", "compute"),
    (E, "compute infer", "compute"),
    (E, "compute output", "compute"),
}


def flags(url: str, *more: str) -> list[str]:
    settings = [f"opentelemetry,url={url}", "opentelemetry,bsp_schedule_delay=100", *more]
    return [f"--trace-config={text}" for text in settings]


def tensor(kind: object, value: float = 1.0) -> object:
    made = kind.InferInput("INPUT0", [1, 8], "FP32")  # type: ignore[attr-defined]
    made.set_data_from_numpy(np.full((1, 8), value, np.float32))
    return made


def ask_grpc(mesh: Mesh, **more: object) -> None:
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        result = client.infer("doubler", [tensor(grpcclient)], **more)
        assert (result.as_numpy("OUTPUT0") == 2).all()


def ask_http(mesh: Mesh, **more: object) -> None:
    with httpclient.InferenceServerClient(mesh.http) as client:
        result = client.infer("doubler", [tensor(httpclient)], **more)
        assert (result.as_numpy("OUTPUT0") == 2).all()
