"""Model versions: the way of a request from its queue to its response.

A version owns a queue and the batches of its instances. Knows neither executors nor the catalogue.
"""

# layout: compiled
