"""Principals, their rights and limits, and the refusals that name a principal."""
