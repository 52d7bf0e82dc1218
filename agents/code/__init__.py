"""Code that travels with a job: fetched from controller or repository, unpacked as its user."""
