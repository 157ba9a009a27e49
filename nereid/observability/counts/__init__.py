"""Counts of models that outlive the schedulers which counted them."""

# layout: pure
