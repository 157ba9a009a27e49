"""JSON documents of the HTTP API: a parser with Triton's error texts, tensor data, replies."""
