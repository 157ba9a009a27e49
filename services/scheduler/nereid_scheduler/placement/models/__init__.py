"""The catalogue of served models, and what a load needs to know of one."""
