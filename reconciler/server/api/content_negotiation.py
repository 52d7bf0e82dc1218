"""Content negotiation by the headers ``Accept`` and ``Accept-Encoding``."""


def weight(header: str, name: str) -> float:
    """Return the weight of ``name``, from 0 to 1; the largest if it is named twice."""
    most = 0.0
    for one in header.split(","):
        named, *parameters = (part.strip().lower() for part in one.split(";"))
        if named != name:
            continue
        value = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    value = float(parameter[2:])
                except ValueError:
                    value = 0.0
        most = max(most, value)
    return most
