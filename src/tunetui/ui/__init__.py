"""The Textual app: it draws the session's state and turns keys into calls of the driver."""
