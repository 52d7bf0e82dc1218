"""What is mounted in the places that a test looks after: others mount elsewhere meanwhile."""

from pathlib import Path

#: What tasks get for themselves in place of the machine's: nothing may ever lie over these.
SHARED = frozenset({"/tmp", "/var/tmp", "/dev/shm", "/proc", "/dev", "/"})


def at(*places: Path | str) -> set[str]:
    """Lines of the kernel's table whose mount point is one of some places or below one, or is one
    of those that tasks share with the machine."""
    tops = [Path(place) for place in places]
    found = set()
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split()[4]
        if point in SHARED or any(Path(point).is_relative_to(top) for top in tops):
            found.add(line)
    return found
