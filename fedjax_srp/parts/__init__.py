"""Parts: frozen dataclasses that are pytrees, checked by their annotations and rebuilt from descriptions."""
