"""One function for each thing a user can ask; server and command line call only these."""
