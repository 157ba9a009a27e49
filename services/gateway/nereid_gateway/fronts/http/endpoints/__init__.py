"""Handlers of the HTTP routes."""
