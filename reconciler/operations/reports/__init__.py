"""Reports of usage and efficiency, and plots of jobs."""
