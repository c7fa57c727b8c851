"""Admits requests: keys and quotas, a bounded queue, and engines that are replaced when they
fail."""
