"""What everything else stands on: errors, arrays, the clock."""
