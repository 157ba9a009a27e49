"""The protocol between an executor and its worker; both processes import this package."""
