"""Workers that serve their instance's stream themselves: models in Nereid's own Python."""

# layout: compiled
