"""The protocol between an executor and its worker; the executor imports it from here as well."""
