"""`nereid analyze`'s own search beside an exhaustive one, on real models."""
