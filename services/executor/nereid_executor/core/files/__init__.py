"""Files of models, and their digests."""
