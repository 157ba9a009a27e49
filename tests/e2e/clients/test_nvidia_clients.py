"""NVIDIA's own clients against the whole mesh, on both edge engines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.mesh.mesh import Mesh
from tests.support.mesh.nvidia_clients import SITES, Client, connected
from tests.support.models.e2e_models import DATATYPES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(("mesh", "flavour"), SITES, indirect=["mesh"]),
]


@pytest.fixture
def client(mesh: Mesh, flavour: str) -> Iterator[Client]:
    with connected(mesh, flavour) as made:
        yield made


def sample(datatype: str) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        return np.array([[b"", b"abc", "é".encode()], [b"x" * 300, b"a\0b", b"1"]], np.object_)
    numpy_type = np.dtype(DATATYPES[datatype][1])
    return np.arange(6).reshape(2, 3).astype(numpy_type)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_as_it_went(client: Client, datatype: str) -> None:
    array = sample(datatype)
    result = client.infer(f"identity_{datatype.lower()}", {"INPUT0": array}, request_id="mine")
    wire_response = result.as_numpy("OUTPUT0")
    assert wire_response.dtype == array.dtype
    assert wire_response.tolist() == array.tolist()
    response = result.get_response()
    assert (response["id"] if client.is_http else response.id) == "mine"
