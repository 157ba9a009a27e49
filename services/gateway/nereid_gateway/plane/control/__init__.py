"""Control calls to the schedulers, and the counts of models that gateways keep."""
