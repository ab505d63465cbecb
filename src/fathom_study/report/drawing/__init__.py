"""Tables → figures in files, and the record of what they were drawn from."""
