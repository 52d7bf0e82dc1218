"""Errors that the core attributes to a job, so that only that job is quarantined."""


class JobError(Exception):
    """An error that the core raised while it processed one job; the error itself is its cause."""

    def __init__(self, job: str) -> None:
        super().__init__(f"an error occurred while job {job} was processed")
        self.job = job


class JobErrorScope:
    """A block about one job; what it raises becomes a ``JobError``."""

    __slots__ = ("_job",)

    def __init__(self, job: str) -> None:
        self._job = job

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Name the job if the block raises."""
        if isinstance(error, Exception) and not isinstance(error, JobError):
            raise JobError(self._job) from error


def job_of_error(error: Exception) -> str | None:
    """Return the job that an error names, if any."""
    return error.job if isinstance(error, JobError) else None
