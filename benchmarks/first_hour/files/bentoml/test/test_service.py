from service import Double
from starlette.testclient import TestClient


def test_double():
    with TestClient(app=Double.to_asgi()) as client:
        response = client.post("/double", json={"x": [1, 1, 1, 1]})
    assert sum(response.json()) == 8
