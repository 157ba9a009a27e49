"""The tool `nereid analyze`: finds a model's best settings by measuring. It imports no service."""
