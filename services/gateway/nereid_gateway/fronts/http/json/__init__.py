"""JSON of the HTTP API: parser with Triton's error texts, data of tensors, control responses."""
