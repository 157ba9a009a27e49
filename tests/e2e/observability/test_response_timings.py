"""Responses that say where their request's time went, through the real mesh."""

from __future__ import annotations

import contextlib
import http.client
import queue
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.repeats import stream
from tests.support.models import python_models
from tests.support.models.e2e_models import save_echo
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

pytestmark = pytest.mark.slow

ASKED = {"nereid-timing": "1"}
DELAY_MS = 50
PHASES = ("cache", "queue", "batch-wait", "input", "inference", "output")
_ENTRY = re.compile(r'([a-z-]+)(?:;dur=([0-9.]+))?(?:;desc=(?:"([^"]*)"|(\w+)))?')


class Timings:
    """A value of Server-Timing."""

    def __init__(self, text: str) -> None:
        self.ms: dict[str, float] = {}
        self.text: dict[str, str] = {}
        for entry in text.split(", "):
            match = _ENTRY.fullmatch(entry)
            assert match is not None, text
            name, ms, quoted, token = match.groups()
            if ms is not None:
                self.ms[name] = float(ms)
            if quoted or token:
                self.text[name] = quoted or token
        named = sum(ms for name, ms in self.ms.items() if name != "total")
        # All that the gateway measured has a name; times are rounded to microseconds.
        assert named == pytest.approx(self.ms["total"], abs=0.001 * len(self.ms))

    @property
    def phases(self) -> list[str]:
        return [name for name in self.ms if name in PHASES]


@pytest.fixture(
    scope="module", params=["none", pytest.param("scheduler", marks=pytest.mark.nightly)]
)
def it(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("timed")
    models = root / "models"
    save_echo(models, "plain")
    batching = f"max_queue_delay_microseconds: {DELAY_MS * 1000} preferred_batch_size: [ 2 ]"
    save_echo(models, "batched", f"dynamic_batching {{ {batching} }}\n")
    save_echo(models, "kept", "response_cache { enable: true }\n")
    steps = [
        ("batched", {"INPUT0": "INPUT0"}, {"OUTPUT0": "left"}),
        ("batched", {"INPUT0": "INPUT0"}, {"OUTPUT0": "right"}),
        ("plain", {"INPUT0": "left"}, {"OUTPUT0": "OUTPUT0"}),
        ("plain", {"INPUT0": "right"}, {"OUTPUT0": "OUTPUT1"}),
    ]
    ends = ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1", "OUTPUT1 FP32 -1"]
    save_ensemble(models, "forked", ensemble_config(*ends, steps, "max_batch_size: 8\n"))
    python_models.save(models, "repeat", python_models.REPEAT)
    python_models.save(models, "talk", python_models.TALK)
    flags = (f"--join={request.param}", "--cache-config=local,size=1048576")
    with running(models, root / "log", *flags, "--cache-timeout-ms=10000") as mesh:
        yield mesh


def http_headers(
    mesh: Mesh, model: str, headers: dict[str, str], value: float = 1
) -> dict[str, str]:
    """Of the response to NVIDIA's client."""
    with httpclient.InferenceServerClient(mesh.http) as client:
        tensor = httpclient.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.full((1, 4), value, np.float32))
        seen = []
        send = client._client_stub.post

        def post(*args: Any, **kwargs: Any) -> Any:
            response = send(*args, **kwargs)
            seen.append(response)
            return response

        client._client_stub.post = post
        # The second one on a connection has the same HTTP head.
        for _ in range(2):
            # The client adds its own to what it is given.
            result = client.infer(model, [tensor], headers=dict(headers))
            assert (result.as_numpy("OUTPUT0") == value).all()
        return {name.lower(): text for name, text in seen[-1].headers}


def over_http(mesh: Mesh, model: str, value: float = 1) -> Timings:
    return Timings(http_headers(mesh, model, ASKED, value)["server-timing"])


def grpc_request(model: str, value: float = 1) -> Any:
    request = grpcclient.service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.full(4, value, np.float32).tobytes())
    return request


def over_grpc(mesh: Mesh, request: Any, metadata: dict[str, str]) -> Any:
    """The response, and the trailing metadata of the call."""
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        infer = client._client_stub.ModelInfer
        response, call = infer.with_call(request, metadata=tuple(metadata.items()))
        return response, dict(call.trailing_metadata())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_response_has_each_part_of_its_requests_time(it: Mesh, protocol: str) -> None:
    def timed() -> Timings:
        if protocol == "http":
            return over_http(it, "batched")
        trailers = over_grpc(it, grpc_request("batched"), ASKED)[1]
        return Timings(trailers["server-timing"])

    timings = timed()
    assert timings.phases == ["queue", "batch-wait", "input", "inference", "output"]
    # It came alone, and the instance was free all the time.
    assert timings.ms["batch-wait"] == pytest.approx(DELAY_MS, abs=1)
    assert timings.text["batch-size"] == "1"
    assert timings.text["instance"].startswith("batched")
    assert timings.text["attempt"] == "1"


def test_a_full_batch_does_not_wait_for_its_delay(it: Mesh) -> None:
    with ThreadPoolExecutor(2) as threads:
        until(
            lambda: all(
                timings.text["batch-size"] == "2" and timings.ms["batch-wait"] < DELAY_MS
                for timings in threads.map(lambda _: over_http(it, "batched"), range(2))
            ),
            "two requests in a batch",
        )


@pytest.mark.parametrize("value", ["", "0", "yes", "1;1"])
def test_nothing_differs_for_requests_that_do_not_ask(it: Mesh, value: str) -> None:
    asked = {"nereid-timing": value} if value else {}
    plain = http_headers(it, "plain", {})
    assert http_headers(it, "plain", asked) == plain
    with_timings = http_headers(it, "plain", ASKED)
    assert with_timings.pop("server-timing")
    assert with_timings == plain
    response, trailers = over_grpc(it, grpc_request("plain"), asked)
    assert not trailers
    assert response == over_grpc(it, grpc_request("plain"), ASKED)[0]


def test_a_response_of_the_cache_says_so(it: Mesh) -> None:
    missed = over_grpc(it, grpc_request("kept", 7), ASKED)[1]["server-timing"]
    assert "cache;dur=" in missed
    assert Timings(missed).text["cache"] == "miss"
    assert Timings(missed).phases == ["cache", "queue", "input", "inference", "output"]

    def hit() -> bool:
        timings = Timings(over_grpc(it, grpc_request("kept", 7), ASKED)[1]["server-timing"])
        return timings.text["cache"] == "hit" and timings.phases == ["cache"]

    until(hit, "a hit")


def test_an_ensembles_parts_are_those_of_the_steps_that_it_waited_for(it: Mesh) -> None:
    timings = over_http(it, "forked")
    assert timings.phases == ["queue", "batch-wait", "input", "inference", "output"]
    # Two steps at the same time; their delays would be more than the whole.
    assert timings.ms["batch-wait"] <= DELAY_MS + 1
    assert timings.text == {"attempt": "1"}


def test_a_streams_responses_have_it_as_a_parameter(it: Mesh) -> None:
    results: queue.Queue[Any] = queue.Queue()

    def asked(headers: dict[str, str], model: str = "plain") -> Any:
        with grpcclient.InferenceServerClient(it.grpc) as client:
            client.start_stream(lambda result, error: results.put((result, error)), headers=headers)
            tensor = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.async_stream_infer(model, [tensor])
            result, error = results.get(timeout=60)
            return error or result.get_response()

    parameters = asked(ASKED).parameters
    assert Timings(parameters.pop("server_timing").string_param).text["attempt"] == "1"
    assert parameters == asked({}).parameters
    assert "is not found" in str(asked(ASKED, "missing"))


def test_the_last_response_of_many_has_it(it: Mesh) -> None:
    with stream(it, headers=ASKED) as one:
        one.ask("repeat", "then_end", 3, 1, enable_empty_final_response=True)
        responses = [one.next() for _ in range(4)]
    values = [each.parameters["server_timing"].string_param for each in responses]
    assert values[:3] == ["", "", ""]
    assert Timings(values[3]).text["attempt"] == "1"


def test_failed_requests_say_what_is_known(it: Mesh) -> None:
    command = '{"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": ["raise x"]}'
    for model, status, phases in (
        ("talk", 500, ["queue", "input", "inference", "output"]),
        ("missing", 404, []),
    ):
        with contextlib.closing(http.client.HTTPConnection(it.http)) as connection:
            path = f"/v2/models/{model}/infer"
            connection.request("POST", path, f'{{"inputs": [{command}]}}', headers=ASKED)
            with connection.getresponse() as response:
                assert response.status == status
                assert Timings(response.headers["Server-Timing"]).phases == phases


def test_events_end_with_it(it: Mesh) -> None:
    with contextlib.closing(http.client.HTTPConnection(it.http)) as connection:
        body = '{"COUNT": 2, "SIZE": 1, "MODE": "then_end"}'
        connection.request("POST", "/v2/models/repeat/generate_stream", body, headers=ASKED)
        with connection.getresponse() as response:
            # The last chunk and the trailers behind it, as they are on the wire.
            assert response.fp is not None
            text = response.fp.read1().decode()
            while not text.endswith("\r\n\r\n") or "\r\n0\r\n" not in text:
                text += response.fp.read1().decode()
            response.close()
    line = text.rpartition("\r\n0\r\n")[2].strip()
    assert Timings(line.removeprefix("Server-Timing: ")).text["attempt"] == "1"


def test_a_request_that_runs_again_says_so(tmp_path: Path) -> None:
    directory = python_models.save(tmp_path / "models", "charging", python_models.CHARGING)
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        request = grpcclient.service_pb2.ModelInferRequest(model_name="charging", id="a")
        request.inputs.add(name="SECONDS", datatype="FP32", shape=[1])
        request.raw_input_contents.append(np.array([1], np.float32).tobytes())
        charges = directory / "charges"
        with ThreadPoolExecutor(1) as thread:
            responded = thread.submit(over_grpc, mesh, request, ASKED)
            until(charges.exists, "the request to begin")
            mesh.kill("nereid_executor")
            timings = Timings(responded.result()[1]["server-timing"])
        assert timings.text["attempt"] == "2"
        # What the lost attempt took counts as queued.
        assert timings.ms["inference"] >= 1000


@pytest.mark.parametrize("choice", ["always", "never"])
def test_the_flag_is_for_all_requests(tmp_path: Path, choice: str) -> None:
    save_echo(tmp_path / "models", "plain")
    flag = f"--response-timings={choice}"
    with running(tmp_path / "models", tmp_path / "log", flag) as mesh:
        for headers in ({}, ASKED):
            timed = "server-timing" in http_headers(mesh, "plain", headers)
            assert timed is (choice == "always")
            timed = "server-timing" in over_grpc(mesh, grpc_request("plain"), headers)[1]
            assert timed is (choice == "always")
