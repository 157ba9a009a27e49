"""Streams a text of `textgen` over HTTP, as server-sent events, and prints each token.

    python examples/stream_http.py --prompt "Once upon a time" --length 32

With --stop it disconnects after so many tokens, and the model stops. Exits 1 if the text is not
what the model generates offline. stream_grpc.py is the same over gRPC.
"""

import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any

from zoo import prompting


def main() -> None:
    given = prompting.arguments(__doc__.partition("\n")[0], "localhost:8000")
    connection = HTTPConnection(given.url, timeout=60)
    try:
        right = prompting.show(given, _tokens(connection, given))
    except (HTTPException, OSError) as error:
        sys.exit(f"{given.url}: {error}")
    finally:
        connection.close()
    sys.exit(0 if right else 1)


def _tokens(connection: HTTPConnection, given: Any) -> Iterator[str]:
    # Members that are no inputs of the model become parameters.
    body = {
        "text_input": given.prompt,
        "max_tokens": given.length,
        "milliseconds_per_token": given.pause,
    }
    connection.request("POST", "/v2/models/textgen/generate_stream", json.dumps(body))
    with connection.getresponse() as response:
        for line in response:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise HTTPException(event["error"])
                yield event["text_output"]
            elif line.startswith(b"{"):
                # Not an event: the request was refused.
                raise HTTPException(json.loads(line)["error"])


if __name__ == "__main__":
    main()
