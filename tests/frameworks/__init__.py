"""Programs of real frameworks, as jobs of a real controller; see ``make frameworks``."""
