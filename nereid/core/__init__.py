"""What all services share about inference: requests, responses, tensors, errors, codecs.

Here belongs what at least two services share about inference itself. Not here: sockets
(`nereid.rpc`), configuration (`nereid.model_config`), anything that only one service needs.
"""
