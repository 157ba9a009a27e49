<<<<<<< HEAD
"""JSON of the HTTP API: parsing with Triton's error texts, tensor data, control responses."""
=======
"""JSON of the HTTP API: parser with Triton's error texts, data of tensors, control responses."""

# layout: compiled
>>>>>>> r-e
