"""Metrics, logs, traces and figures of the last seconds."""
