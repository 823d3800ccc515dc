"""What tunetui decides, as values and pure functions; no clock, files, sockets, asyncio or screen in here."""
