"""The foundations of the package: errors, arrays, the clock."""
