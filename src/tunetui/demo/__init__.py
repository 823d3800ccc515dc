"""A simulated engine whose knobs do what vLLM's do, for trying tunetui without a GPU and for tests in virtual time."""
