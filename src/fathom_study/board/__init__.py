"""The board: tracks, submissions of connections, their check, and the rows of both."""
