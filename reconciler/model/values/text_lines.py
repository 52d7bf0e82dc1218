"""Lines of text that others wrote."""

from typing import AnyStr


def split_lines(text: AnyStr) -> list[AnyStr]:
    """Return the lines of ``text``, each without the line feed that ends it.

    ``splitlines`` ends lines at ten more characters, carriage return and U+2028 among them. What
    git, the kernel and other programs print by the line may hold all of these: whoever puts one
    into a name would add a line of their own.
    """
    feed = b"\n" if isinstance(text, bytes) else "\n"
    lines = text.split(feed)
    return lines if lines[-1] else lines[:-1]
