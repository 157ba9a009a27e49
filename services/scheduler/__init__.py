"""The scheduler service: life cycles of models, and queues, batches and routing of requests."""
