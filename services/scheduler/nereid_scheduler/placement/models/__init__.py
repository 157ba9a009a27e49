"""The catalogue of served models, and the rules for completing and reloading a model."""
