"""What an executor and its worker send each other; the executor imports it from here."""
