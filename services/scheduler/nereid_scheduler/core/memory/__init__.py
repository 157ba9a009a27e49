"""Memory that models need, and the budgets for it."""

# layout: covered, pure
