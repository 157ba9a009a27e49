"""Inference vocabulary that several services share. No sockets, no model configuration."""
