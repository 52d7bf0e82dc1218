"""The command `muster notebook`: Jupyter in a job, composed of a submission, a wait and a forward."""
