"""Forecast of the differences between the old server and a mesh."""
