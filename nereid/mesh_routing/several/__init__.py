"""Routing among several schedulers: their channels, announcements of models, and moved requests."""
