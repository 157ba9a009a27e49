"""KServe v2 over HTTP, and Triton's extensions to it.

The path of one request:

1. `server.connection.HttpConnection` parses bytes into an `HttpCall` and dispatches it.
2. `front.HttpFront` looks up its route (`routes`) and the handler of the route's endpoint.
3. The endpoint's handler (`endpoints`) reads the call's body and calls the scheduler: for inference
   it decodes an `InferRequest`, which `submission.InferSubmission` sends to the data plane; for
   anything else it makes a control call in a task (`call_tasks`).
4. The response is encoded by the handler and written by `HttpCall.respond`, which calls back the
   connection.

`server` is HTTP/1.1 itself and knows no route; `json` reads and writes Triton's documents.
"""

# layout: compiled
