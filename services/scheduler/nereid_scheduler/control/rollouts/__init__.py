"""Rollouts: a version gets its traffic by steps, and loses it again if measurements say so."""

# layout: covered, pure
