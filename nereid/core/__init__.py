"""Inference vocabulary of several services. No sockets, no model configuration."""
