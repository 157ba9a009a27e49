"""Ensembles' graphs: which steps there are, which one comes next, and what is wrong with them."""

# layout: covered, pure
