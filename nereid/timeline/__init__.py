"""What services remember of their last seconds: who did what, and when.

records.py is what a timeline is made of, on every service and wherever it is read.
"""
