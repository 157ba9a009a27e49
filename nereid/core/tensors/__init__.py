"""Datatypes, shapes, and the encoding of tensors as bytes."""
