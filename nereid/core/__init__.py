"""Inference vocabulary of at least two services: requests, responses, tensors, errors, codecs.

Not here: sockets (`nereid.rpc`), configuration (`nereid.model_config`), anything that only one
service needs.
"""
