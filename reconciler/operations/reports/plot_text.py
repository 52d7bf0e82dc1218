"""Texts of others in pictures: names of jobs, queues and series as they are written.

Matplotlib reads formulae between dollars, leaves out of legends what begins with an underscore, and
warns of characters that its font lacks. What goes through ``plain`` is none of that.
"""

_ZERO_WIDTH = "\u200b"


def plain(text: str) -> str:
    """The text as matplotlib is to be given it, wherever it stands in a picture, on one line.

    Characters that can't be drawn are escaped, so that names made of them stay apart. What
    matplotlib reads in others is marked, which nobody sees; lines are wrapped afterwards.
    """
    from matplotlib import font_manager  # noqa: PLC0415 - takes long

    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    drawn = "".join(
        one
        if one.isprintable() and font.get_char_index(ord(one))
        else one.encode("unicode_escape").decode()
        for one in text
    )
    return _ZERO_WIDTH * drawn.startswith("_") + drawn.replace("$", r"\$")
