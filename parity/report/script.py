"""Being written."""
from parity.vocabulary import Case


def standalone(case: Case, aspect: str, device_name: str, title: str) -> str | None:
    """Stub."""
    return None
