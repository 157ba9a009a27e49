"""Declaration of flags: settings are a frozen dataclass whose fields are made by `flag()`."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import inspect
from typing import TYPE_CHECKING, Any

from nereid.rpc.net.address import is_address, text_of, unix_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Parse = Callable[[str], Any]

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# Minimum similarity at which an unknown name is reported as a misspelling.
_SIMILARITY = 0.75


class Topic(enum.Enum):
    """The heading under which help and reference list a flag, in the order of the members."""

    PROCESSES = "Processes and their addresses"
    MODELS = "Model repository and model control"
    QUEUES = "Queues and scheduling"
    EXECUTORS = "Executors and devices"
    HTTP = "HTTP"
    GRPC = "gRPC"
    AUTHENTICATION = "Client authentication"
    LIMITS = "Limits"
    MANAGED = "SageMaker and Vertex AI"
    METRICS = "Metrics"
    TRACING = "Tracing"
    LOGGING = "Logging"
    CACHE = "Response cache"
    SHARED_MEMORY = "Shared memory"
    MESH = "Access and TLS between services"
    TRITON = "Triton's flags without an equivalent"
    TARGET = "The server"
    INPUTS = "Requests"
    LOAD = "Load"
    MEASUREMENT = "Measurement"
    QUESTIONS = "Questions"
    OUTPUT = "Output"
    PERF_ANALYZER = "perf_analyzer's flags"


@dataclasses.dataclass(frozen=True)
class PlatformVariable:
    """An environment variable that a hosting platform sets.

    It counts only if the flag and the flag's own variable are not given. Key of texts: a text of
    the variable. Value: the flag's text. Other texts are ignored. `None` means that both are the
    same.
    """

    name: str
    texts: Mapping[str, str] | None = None

    def flag_text(self, environ: Mapping[str, str]) -> str | None:
        """Return the flag's text that follows from the variable; `None` if there is none."""
        text = environ.get(self.name) or None
        return text if text is None or self.texts is None else self.texts.get(text)


@dataclasses.dataclass(frozen=True)
class Flag:
    """Rules for reading one setting. parse raises ValueError with the reason for a refusal."""

    help: str
    parse: Parse
    aliases: tuple[str, ...] = ()
    # Key: a deprecated flag. Value: the prefix that turns its value into one of this flag.
    deprecated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # True if the flag may be given several times, so that its value is a tuple. In the environment,
    # `;` separates the elements, or they are a JSON list.
    repeated: bool = False
    # The text that "--flag" without a value stands for.
    bare: str | None = None
    # True if the value may hold a password. Errors hide it, and children get it by environment
    # only.
    secret: bool = False
    # The default with --hardened; `None` keeps the usual default.
    hardened: str | None = None
    platform: PlatformVariable | None = None
    # Adds texts from another standard's variables, with lower priority, to the given texts. The
    # added texts must be valid.
    merge: Callable[[Mapping[str, str], Sequence[str]], list[str]] | None = None


def flag(  # noqa: PLR0913 - each argument is one fact of the declaration
    default: Any,
    help: str,  # noqa: A002 - argparse's own word for it
    parse: Parse = str,
    *,
    aliases: tuple[str, ...] = (),
    deprecated: Mapping[str, str] | None = None,
    repeated: bool = False,
    bare: str | None = None,
    secret: bool = False,
    hardened: str | None = None,
    platform: PlatformVariable | None = None,
    merge: Callable[[Mapping[str, str], Sequence[str]], list[str]] | None = None,
) -> Any:
    """Return a field that is read from the flag of its name; `...` makes it required."""
    option = Flag(
        help, parse, aliases, deprecated or {}, repeated, bare, secret, hardened, platform, merge
    )
    metadata = {"flag": option}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class DeclaredFlag:
    """A flag together with the field that holds its value."""

    field: dataclasses.Field[Any]
    option: Flag
    topic: Topic | None

    @property
    def name(self) -> str:
        """The flag, such as --http-port."""
        return flag_name(self.field)

    @property
    def variable(self) -> str:
        """The flag's environment variable, such as NEREID_HTTP_PORT."""
        return "NEREID_" + self.field.name.upper()

    @property
    def required(self) -> bool:
        """True if the flag has no default."""
        return self.field.default is dataclasses.MISSING

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if there is none."""
        default = self.field.default
        if default in (dataclasses.MISSING, None, (), ""):
            return ""
        return ", ".join(map(flag_text, default if isinstance(default, tuple) else (default,)))


def declared_flags(*settings: type[Any]) -> list[DeclaredFlag]:
    """Return the flags of these settings classes. Of equal names, the first declaration counts."""
    flags: dict[str, DeclaredFlag] = {}
    for cls in settings:
        for field in dataclasses.fields(cls):
            if field.name not in flags:
                topic = _topic_of(cls, field.name)
                flags[field.name] = DeclaredFlag(field, field.metadata["flag"], topic)
    return list(flags.values())


def flags_by_topic(flags: Iterable[DeclaredFlag]) -> list[tuple[Topic | None, list[DeclaredFlag]]]:
    """Return the flags by topic, in the order of Topic; flags without a topic come last."""
    groups: dict[Topic | None, list[DeclaredFlag]] = {}
    for declared in flags:
        groups.setdefault(declared.topic, []).append(declared)
    return [(topic, groups[topic]) for topic in (*Topic, None) if topic in groups]


def _topic_of(settings: type[Any], name: str) -> Topic | None:
    for cls in settings.__mro__:
        if name in inspect.get_annotations(cls):
            return getattr(cls, "TOPIC", None)
    return None


def flag_name(field: dataclasses.Field[Any]) -> str:
    """Return a field's flag: --exit-timeout-secs for exit_timeout_secs."""
    return "--" + field.name.replace("_", "-")


def flag_text(value: Any) -> str:
    """Return a value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def similar(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean X?" for an unknown name, or "" if none of the names is similar."""
    near = difflib.get_close_matches(name, list(names), 1, _SIMILARITY)
    return f"; did you mean {near[0]}?" if near else ""


def boolean(text: str) -> bool:
    """Parse true/false, 1/0, yes/no or on/off; raise ValueError for anything else."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("expected true or false")


def integer(least: int, most: int | None = None) -> Parse:
    """Return a parser of whole numbers from least to most, both included."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ValueError(f"expected a whole number {bound}")
        return value

    return parse


def seconds(text: str) -> float:
    """Parse a number of seconds that is finite and not negative; raise ValueError otherwise."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise ValueError("expected a number of seconds, not negative")
    return value


@dataclasses.dataclass(frozen=True)
class Choice:
    """A parser that accepts one of these words, in lower or upper case, as Triton does."""

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return the word; raise ValueError if it is none of them."""
        for name in self.names:
            if name.lower() == text.lower():
                return name
        raise ValueError(f"expected one of {', '.join(self.names)}")


def choice(*names: str) -> Choice:
    """Return a parser that accepts one of these words."""
    return Choice(names)


def address(text: str) -> str:
    """Parse host:port, [v6]:port or unix:/path; raise ValueError otherwise."""
    if not is_address(text):
        raise ValueError("expected host:port or unix:/path")
    return text


def listening_address(interface: str, port: int) -> str:
    """Return the address of an interface (which may be unix:/path or [v6]) and a port."""
    if unix_path(interface) is not None:
        return interface
    return text_of((interface.removeprefix("[").removesuffix("]"), port))


port = integer(0, 65535)
# -1 means no port.
own_port = integer(-1, 65535)
