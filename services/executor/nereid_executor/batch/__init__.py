"""A batch on its way through an instance: payloads to arrays, execution, outputs to responses."""
