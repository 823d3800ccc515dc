"""tunetui: step a running vLLM's settings from the keyboard, under load, and keep the point that meets the SLO."""

__version__ = "0.1.0"
