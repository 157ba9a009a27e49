"""State that outlives a scheduler's process.

The state says which models clients have loaded and unloaded, and how, and which settings clients
have changed. docs/operators/state.md says what is restored when.

records: how a record is encoded, and which records are refused. No I/O.
store: interface of the stores that keep records.
files: records in a directory.
cache_store: records in Redis, through the cache service.
recorder: writes changes one after another, so that requests do not wait.
model_records, setting_records: what the records say.
"""
