"""`fathom judge`: one connection of a user's, tried and compared."""
