"""Workers that serve their instance's stream themselves; the model runs in Nereid's own Python."""

# layout: compiled
