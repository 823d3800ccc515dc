"""The one driver: turns what an operator asks for into steps of the adapters and events for the core."""
