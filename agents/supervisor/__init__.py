"""The supervisor, which keeps tasks while agents come and go, and the client that talks to it."""
