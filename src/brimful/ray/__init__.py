"""The same work on a Ray cluster: read and tokenize shards, run inference."""
