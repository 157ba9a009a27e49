"""Access policies of the ports, and the guards that apply them."""
