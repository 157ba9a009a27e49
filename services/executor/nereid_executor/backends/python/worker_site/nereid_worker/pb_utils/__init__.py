"""What model.py files import, a file for each kind of thing in it; api.py is the list."""
