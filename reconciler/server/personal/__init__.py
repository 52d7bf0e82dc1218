"""Settings of people themselves: notifications of their own jobs."""
