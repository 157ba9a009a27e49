"""Model versions, which take a request from its queue to its response.

A version owns a queue and the batches that its instances have. It knows neither executors nor the
catalogue of models.
"""

# layout: compiled
