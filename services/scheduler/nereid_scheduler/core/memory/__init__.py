"""Memory of models: sizes, and the budgets that they have to fit into."""

# layout: covered, pure
