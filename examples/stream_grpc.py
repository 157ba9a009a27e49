"""Streams a text of `textgen` over gRPC and prints each token as it comes.

    python examples/stream_grpc.py --prompt "Once upon a time" --length 32

With --stop it disconnects after so many tokens, and the model stops. Exits 1 if the text is not
what the model generates offline. stream_http.py is the same over HTTP.
"""

import queue
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from zoo import prompting


def main() -> None:
    given = prompting.arguments(__doc__.partition("\n")[0], "localhost:8001")
    try:
        with triton.InferenceServerClient(given.url) as client:
            right = prompting.show(given, _tokens(client, given))
            client.stop_stream(cancel_requests=True)
    except (InferenceServerException, OSError) as error:
        sys.exit(f"{given.url}: {error}")
    sys.exit(0 if right else 1)


def _tokens(client: triton.InferenceServerClient, given: Any) -> Iterator[str]:
    received: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: received.put((result, error)))
    prompt = triton.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([given.prompt.encode()], np.object_))
    length = triton.InferInput("max_tokens", [1], "INT32")
    length.set_data_from_numpy(np.array([given.length], np.int32))
    client.async_stream_infer(
        "textgen",
        [prompt, length],
        parameters={"milliseconds_per_token": given.pause},
        # Otherwise nothing marks the end of the text.
        enable_empty_final_response=True,
    )
    while True:
        result, error = received.get()
        if error is not None:
            raise error
        response = result.get_response()
        if response.outputs:
            yield result.as_numpy("text_output")[0].decode()
        if response.parameters["triton_final_response"].bool_param:
            return


if __name__ == "__main__":
    main()
