"""Library that all of Nereid's services share; knows no service."""
