"""Errors, enumerations and checked arguments that the API of model.py files is made of."""
