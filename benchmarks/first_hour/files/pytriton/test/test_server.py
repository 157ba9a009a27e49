import numpy as np
from pytriton.client import ModelClient
from pytriton.triton import Triton
from server import bind


def test_double():
    with Triton() as triton:
        bind(triton)
        triton.run()
        with ModelClient("localhost", "double") as client:
            result = client.infer_sample(np.ones(4, np.float32))
    assert result["output"].sum() == 8
