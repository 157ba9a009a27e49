"""What all of Nereid's services agree on; knows no service."""
