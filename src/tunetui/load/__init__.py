"""The load generator: a child process that sends requests on time and reports what it saw."""
