"""The HTTP side of the server: reads bodies, sends answers and events, starts and stops."""
