"""What at least two services share about inference: requests, responses, tensors, errors, codecs.

Not here: sockets (`nereid.rpc`), configuration (`nereid.model_config`), anything that only one
service needs.
"""
