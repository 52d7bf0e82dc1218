"""Text in plots: names of jobs, queues and series exactly as they are written.

Matplotlib reads formulae between dollars, leaves names that begin with an underscore out of
legends, and warns about characters that its font lacks. ``plain`` avoids all three.
"""

_ZERO_WIDTH = "\u200b"


def plain(text: str) -> str:
    """Return the text for matplotlib, wherever it is in a plot, on one line.

    Characters that can't be drawn are escaped, so that names made of them differ. Others that
    matplotlib interprets are marked invisibly; wrap lines afterwards.
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
