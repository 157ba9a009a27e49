"""Control calls to the schedulers, and the counts that gateways keep of models."""
