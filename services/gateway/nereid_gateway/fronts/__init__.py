"""The fronts for both protocols."""

# layout: compiled
