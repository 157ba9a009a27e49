"""Model for LitServe: lists in JSON, batched by LitServe.

The file is run as a script, with the arguments port, max_batch_size and batch_timeout in seconds.
"""

import json
import os
import sys
from typing import Any

import litserve
import numpy as np
from batched_session import BatchedSession

_DATATYPES = json.loads(os.environ["NEREID_BENCH_DATATYPES"])


class OnnxApi(litserve.LitAPI):  # type: ignore[misc]  # a package of the peer's
    """API of the model, as LitServe calls it."""

    def setup(self, _device: str) -> None:
        """Open the session."""
        self.session = BatchedSession()

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request's arrays."""
        return {
            name: np.asarray(request[name], dtype=datatype) for name, datatype in _DATATYPES.items()
        }

    def batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Join requests to a batch."""
        return {name: np.concatenate([request[name] for request in inputs]) for name in _DATATYPES}

    def predict(self, x: dict[str, Any]) -> list[Any]:
        """Run a batch."""
        outputs: list[Any] = self.session.run(x)
        return outputs

    def unbatch(self, output: list[Any]) -> list[list[Any]]:
        """Split a batch's outputs."""
        return [[array[row : row + 1] for array in output] for row in range(len(output[0]))]

    def encode_response(self, output: list[Any]) -> dict[str, Any]:
        """Return a response's lists."""
        return {
            name: array.tolist() for name, array in zip(self.session.outputs, output, strict=True)
        }


if __name__ == "__main__":
    port, max_batch_size, batch_timeout = sys.argv[1:]
    api = OnnxApi(max_batch_size=int(max_batch_size), batch_timeout=float(batch_timeout))
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=60)
    server.run(
        host="127.0.0.1",
        port=int(port),
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
