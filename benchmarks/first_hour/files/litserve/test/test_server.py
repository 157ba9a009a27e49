import litserve as ls
from fastapi.testclient import TestClient
from litserve.utils import wrap_litserve_start
from server import Double


def test_double():
    with wrap_litserve_start(ls.LitServer(Double())) as server, TestClient(server.app) as client:
        response = client.post("/predict", json={"x": [1, 1, 1, 1]})
    assert sum(response.json()["output"]) == 8
