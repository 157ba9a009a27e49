"""Configuration files of Triton's Model Analyzer, as we read them."""
