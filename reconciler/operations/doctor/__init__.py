"""An examination of what stands between a person and their first job."""
