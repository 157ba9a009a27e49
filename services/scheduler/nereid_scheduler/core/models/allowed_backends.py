"""Backends that models may use, as the flag --backends says."""

from __future__ import annotations

from dataclasses import dataclass

from nereid.core.errors import InvalidArgument


@dataclass(frozen=True)
class AllowedBackends:
    """Set of allowed backends: all, only the named ones, or all but the excluded ones."""

    # `None`: all but the excluded ones.
    named: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> AllowedBackends:
        """Parse onnxruntime,openvino or -python,-pytorch; empty allows all. Raises ValueError."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        excluded = [name[1:] for name in names if name.startswith("-")]
        if not excluded:
            return cls(frozenset(names)) if names else cls()
        if len(excluded) < len(names) or not all(excluded):
            raise ValueError("expected names, or names that each begin with -")
        return cls(None, frozenset(excluded))

    def __str__(self) -> str:
        names = sorted(self.named or ()) or [f"-{name}" for name in sorted(self.excluded)]
        return ",".join(names)

    def require(self, backend: str, model: str) -> None:
        """Raise InvalidArgument if models may not use this backend."""
        if backend in self.excluded or (self.named is not None and backend not in self.named):
            raise InvalidArgument(
                f"backend '{backend}' of model '{model}' is not allowed on this server (--backends)"
            )


ALL_BACKENDS = AllowedBackends()
