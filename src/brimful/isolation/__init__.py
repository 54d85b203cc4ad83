"""Whether a model keeps the samples of a batch apart: tried, named, and guarded."""
