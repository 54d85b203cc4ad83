"""The same work on a Ray cluster: read and tokenise shards, run inference."""
