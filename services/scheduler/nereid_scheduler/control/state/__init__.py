"""State that outlives a scheduler's process.

It consists of which models clients have loaded and unloaded, and how, and of the settings that
clients have changed. docs/operators/state.md says what of that comes back when.

records: how one record is written and which records are refused (pure). store: the interface of
what keeps records. files: records in a directory. cache_store: records in Redis, through the cache.
recorder: writes changes, one after another, beside the requests. model_records, setting_records:
what the records say.
"""
