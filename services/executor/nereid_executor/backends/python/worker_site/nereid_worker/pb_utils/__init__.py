"""The API that model.py files import: a module for each kind of object; api.py lists all names."""
