"""Compares the search of `nereid analyze` with an exhaustive search, on real models."""
