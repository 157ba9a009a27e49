"""Floods of the routes of SageMaker and Vertex AI, whose platforms call from one address."""

from __future__ import annotations

import json

from tests.support.hostile.attack import ANY, SERVED, Attack, Client, Target
from tests.support.hostile.attacks.control_calls import flood
from tests.support.hostile.raw_clients import HttpClient, post


def _once(request: bytes, port: str) -> Client:
    def client(target: Target) -> str:
        connection = HttpClient(getattr(target, port), target.source)
        try:
            return connection.pump(request, until=lambda: False, limit_s=20).outcome
        finally:
            connection.close()

    return client


def _load(number: int) -> bytes:
    document = {"model_name": f"archive_{number}", "url": f"/nowhere/{number}/model"}
    return post("/models", json.dumps(document).encode())


def _redirect(to: str) -> bytes:
    return post("/predict", b"", f"X-Vertex-Ai-Triton-Redirect: {to}")


_PING, _LIST = post("/ping", method="GET"), post("/models", method="GET")

# Each with its harmless twin.
ATTACKS = (
    Attack("SageMaker: 4,000 pings", flood(lambda _: _PING, "sagemaker"), ANY, nightly=True),
    Attack("SageMaker: one list", _once(_LIST, "sagemaker"), SERVED),
    Attack("SageMaker: 4,000 lists", flood(lambda _: _LIST, "sagemaker"), ANY, nightly=True),
    Attack("SageMaker: 4,000 loads of archives", flood(_load, "sagemaker"), ANY),
    Attack(
        "Vertex AI: 4,000 redirected questions for the index",
        flood(lambda _: _redirect("v2/repository/index"), "vertex"),
        ANY,
        nightly=True,
    ),
    Attack(
        "Vertex AI: 4,000 redirected pages of metrics",
        flood(lambda _: _redirect("metrics"), "vertex"),
        ANY,
    ),
    Attack("Vertex AI: one page of metrics", _once(_redirect("metrics"), "vertex"), SERVED),
)
