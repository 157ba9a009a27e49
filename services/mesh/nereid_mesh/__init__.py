"""The mesh on one host. Only this package imports more than one service."""
