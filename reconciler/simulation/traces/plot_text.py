"""Texts from elsewhere in plots: names of jobs, queues and series, drawn as they are written.

Matplotlib reads formulae between dollars, leaves names with a leading underscore out of legends,
and warns of missing glyphs. ``plain`` prevents all three.
"""

_ZERO_WIDTH = "\u200b"


def plain(text: str) -> str:
    """Return a text on one line that matplotlib draws literally.

    Characters without a glyph are escaped, so that names made of them stay apart. Special
    characters are marked invisibly; wrap lines afterwards.
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
