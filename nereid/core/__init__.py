"""Inference vocabulary that several services share: requests, responses, tensors, errors, codecs.

This package contains no sockets (see `nereid.rpc`), no model configuration (see
`nereid.model_config`), and nothing that only one service needs.
"""
