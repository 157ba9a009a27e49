"""The two protocols: both translate, and hand requests to the data plane."""

# layout: compiled
