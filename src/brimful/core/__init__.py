"""Items that carry the state after them: stages, states, iterators, threads; no kind of item in particular."""
