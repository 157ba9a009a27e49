"""The one descriptor pool that all of nereid.pb registers in.

Private, so that tritonclient's stubs of the same package can live in the same process.
"""

from google.protobuf import descriptor_pool

POOL = descriptor_pool.DescriptorPool()
