"""The API that model.py files import. Each kind of object has a module; api.py lists all names."""
