"""A batch on its way through an instance: inputs to arrays, execution, outputs to responses."""
