"""Links to gateways, and admission, which puts gateways' requests into model versions' queues."""
