"""What outlives a scheduler's process: which models clients have loaded and unloaded, and how, and
the settings that they have changed. docs/operators/state.md says what of that comes back when.

records: how one record is written, and what is refused (pure). store: what keeps records; files:
in a directory; cache_store: in Redis, through the cache. recorder: writes changes, one after
another, beside the requests. model_records, setting_records: what the records say.
"""
