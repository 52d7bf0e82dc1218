"""How every view is written as JSON: what the API, plans and ``-o json`` have in common."""

import msgspec


class View(msgspec.Struct, frozen=True, rename="camel"):
    """Field names in camel case, as JSON has them."""
