"""The files of Triton's Model Analyzer: its configuration as we read it, its tables as we write
them.
"""
