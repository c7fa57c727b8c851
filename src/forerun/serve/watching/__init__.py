"""Observes the server: metrics, logs, traces, and the rates of the last seconds."""
