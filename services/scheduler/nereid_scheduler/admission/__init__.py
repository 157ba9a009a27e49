"""Links to gateways, and the admission of their requests to the queues of model versions."""
