"""Library that all of Nereid's services share. It depends on none of them."""
