"""Model control: sources say which models are desired, and the reconciler serves these models."""
