"""Errors, enumerations and checks of arguments that the API of model.py files uses."""
