"""Requests are taken in here: keys and quotas, a bounded queue, and engines that may die."""
