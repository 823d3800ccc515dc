"""tunetui's part inside vLLM: a scheduler class whose limits can change while it runs.

Only the standard library and vLLM are imported here, and vLLM only by `scheduler`; it runs on Python 3.9 and later.
"""
