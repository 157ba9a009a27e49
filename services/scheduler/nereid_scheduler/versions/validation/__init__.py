"""Validation of requests and of warm-up requests against a model's configuration."""
