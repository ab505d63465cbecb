"""Files and hardware."""
