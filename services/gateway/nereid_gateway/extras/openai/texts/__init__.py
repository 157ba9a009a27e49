"""Text models, their tokenizers, and the tensors of rows. Nothing here knows an API's bodies."""
