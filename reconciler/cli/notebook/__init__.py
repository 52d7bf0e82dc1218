"""The command `muster notebook`: a job that runs Jupyter, a wait and a forward, in one."""
