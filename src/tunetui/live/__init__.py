"""What runs inside the vLLM process; it imports the standard library and vLLM, nothing of ours."""
