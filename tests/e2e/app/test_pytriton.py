"""A file for PyTriton on a mesh, after its import has been changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

QUICKSTART = """
import numpy as np
from nereid.pytriton import ModelConfig, Tensor, Triton, TritonConfig, batch, first_value

@batch
def negative(data):
    return [data * np.array([[-1]], dtype=np.float32)]

def lengths(requests):
    return [{"sizes": np.array([[len(request["data"])]] * len(request["data"]))}
            for request in requests]

@batch
@first_value("factor")
def scaled(data, factor):
    return {"scaled": data * factor}

@batch
def parts(data):
    for column in range(data.shape[1]):
        yield [data[:, column:column + 1]]

@batch
def shout(text):
    return [np.char.add(np.char.upper(np.char.decode(text.astype("S"))), "!").astype(object)]

with Triton(config=TritonConfig(0, 0, 0)) as triton:
    data = Tensor(name="data", dtype=np.float32, shape=(-1,))
    config = ModelConfig(max_batch_size=128)
    triton.bind(model_name="Linear", infer_func=negative, inputs=[data],
                outputs=[Tensor(name="result", dtype=np.float32, shape=(-1,))], config=config)
    triton.bind("lengths", [lengths, lengths], [data],
                [Tensor(name="sizes", dtype=np.int64, shape=(1,))])
    triton.bind("scaled", scaled, [data, Tensor(name="factor", dtype=np.float32, shape=(1,))],
                [Tensor(name="scaled", dtype=np.float32, shape=(-1,))])
    triton.bind("parts", parts, [data], [Tensor(dtype=np.float32, shape=(1,))],
                ModelConfig(decoupled=True))
    triton.bind("shout", shout, [Tensor(name="text", dtype=bytes, shape=(1,))],
                [Tensor(dtype=bytes, shape=(1,))])
    triton.run()
    import json
    import nereid
    client = nereid.Client(triton._mesh.grpc)
    x = np.ones((2, 3), "f4")
    print("RESULTS", json.dumps([
        client["Linear"](x).tolist(),
        client["lengths"](x).tolist(),
        client["scaled"](x, np.full((2, 1), 4, "f4")).tolist(),
        [each.tolist() for each in client["parts"](x)],
        [each.decode() for each in client["shout"]([[b"hi"]]).flat],
    ]), triton.is_alive())
    client.close()
"""


def test_the_quickstart_and_every_kind_of_function(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(QUICKSTART)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")]
    assert json.loads(line.removeprefix("RESULTS ").removesuffix(" True")) == [
        [[-1.0] * 3] * 2,
        [[2]] * 2,
        [[4.0] * 3] * 2,
        [[[1.0]] * 2] * 3,
        ["HI!"],
    ]
