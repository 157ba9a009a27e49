"""Reads configuration files of Triton's Model Analyzer."""
