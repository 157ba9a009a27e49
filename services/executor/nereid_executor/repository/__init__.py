"""Preparation of a model's directory before its files are loaded: fetches and repository agents."""
