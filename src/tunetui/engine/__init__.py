"""vLLM as a process and a server: command line, start and stop, log, metrics and live control."""
