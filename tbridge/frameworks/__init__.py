"""One file a framework: the only places that name one. They do not know each other."""

__all__: list[str] = []
