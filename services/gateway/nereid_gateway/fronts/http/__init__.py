"""KServe v2 over HTTP, and Triton's extensions.

A request takes this path:

1. `server.connection.HttpConnection` parses bytes into an `HttpCall` and dispatches the call.
2. `front.HttpFront` looks up the route of the call (`routes`) and the handler of its endpoint.
3. The handler (`endpoints`, `inference`) reads the body. For inference it decodes an
   `InferRequest`, which `submission.InferSubmission` sends to the data plane. For anything else it
   makes a control call to the scheduler, in a task (`call_tasks`).
4. The handler encodes the response. `HttpCall.respond` notifies the connection, which writes it.

`server` is HTTP/1.1 itself and knows no route. `json` reads and writes Triton's documents.
"""

# layout: compiled
