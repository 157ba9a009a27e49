"""JSON of the HTTP API: parsing with Triton's error texts, tensor data, control responses."""
