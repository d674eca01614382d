"""The commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from reactivex import Observable
from rich.console import Console

import rxloop
from rxloop.channel import iterate
from rxloop.cli.interrupts import INTERRUPTED, hang_up, interruptible
from rxloop.cli.providers import Provider
from rxloop.cli.serve import serve
from rxloop.cli.show import JsonView, PlainView, TerminalView, View, one_line
from rxloop.errors import AuthenticationError, ConfigurationError, RxLoopError
from rxloop.events import ReasoningDelta, StepFinished, TextDelta, ToolCallDelta, TurnEvent, TurnStarted
from rxloop.turn import Turn

if TYPE_CHECKING:
    from rxloop.testing.timeline import Timeline

__all__ = ("app", "run")

_DEMO = Path(rxloop.__file__).parent / "demo.yaml"
_DEMO_TOOL_SECONDS = {"local_time": 0.6, "weather": 1.2}
_DEMO_PAUSES: dict[type[TurnEvent], float] = {
    TurnStarted: 0.5,
    ReasoningDelta: 0.022,
    ToolCallDelta: 0.06,
    StepFinished: 0.1,
    TextDelta: 0.03,
}
_AHEAD = 8
"""How many events of a paced turn wait to be shown: what an interrupt leaves unshown must not have happened."""

app = typer.Typer(
    add_completion=False,
    help="Run and replay agentic turns.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Json = Annotated[bool, typer.Option("--json", help="Print one event a line, as JSON.")]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; whatever goes wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that lacks a character shows another
            stream.reconfigure(errors="replace")
    # the base of what typer says of a command line lies in a place that depends on its version
    usage_error: type[Any] = typer.BadParameter.__mro__[2]
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="rxloop", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return hang_up()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except RxLoopError as error:
        _complain(_described(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    except usage_error as error:
        context = getattr(error, "ctx", None)
        command = (
            context.command_path if context is not None else _named(sys.argv[1:] if arguments is None else arguments)
        )
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        _complain(f"{said}. See `{command} --help`.")
        return 2
    except Exception as error:
        if "RXLOOP_DEBUG" in os.environ:
            raise
        _complain(f"unexpected {type(error).__name__}: {error}. RXLOOP_DEBUG=1 shows where.")
        return 1
    return status if isinstance(status, int) else 0


def _named(arguments: Sequence[str]) -> str:
    """The command that was meant, where the error does not tell."""
    command: Any = typer.main.get_command(app)
    return f"rxloop {arguments[0]}" if arguments and arguments[0] in command.commands else "rxloop"


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(rxloop.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    speed: Annotated[float | None, typer.Option(min=0.01, help="How many times faster than normal.")] = None,
    no_delay: Annotated[bool, typer.Option("--no-delay", help="Show everything at once.")] = False,
    as_json: Json = False,
) -> int:
    """Show a recorded turn as it happens. Needs no key and no network."""
    from rxloop.testing.replay import replay

    paced = speed is not None or (_is_terminal() and not as_json)
    factor = 0.0 if no_delay or not paced else 1 / (speed or 1.0)

    async def work(stop: asyncio.Event) -> int:
        seconds = {name: value * factor for name, value in _DEMO_TOOL_SECONDS.items()}
        for turn in replay(_DEMO, tool_seconds=seconds, stop=stop):
            with _view(as_json) as view:
                view.prompt(turn.prompt)
                async for event in _events(turn, ahead=_AHEAD):
                    view.show(event)
                    if pause := _DEMO_PAUSES.get(type(event), 0.0) * factor:
                        await _pause(pause, stop)
        return 0

    return interruptible(work)


Prompt = Annotated[str, typer.Argument(help='What to ask; "-" reads it from stdin.')]
Asked = Annotated[Provider, typer.Option(help="Whom to ask: anthropic, google-ai, vertex, bedrock or sagemaker.")]
Model = Annotated[
    str | None,
    typer.Option(help="The model, or the endpoint on sagemaker; if not given a current one, except on AWS."),
]
Tools = Annotated[str, typer.Option(help="What the model may use, separated by commas: calculator, clock.")]
System = Annotated[str | None, typer.Option(help="The system prompt.")]
MaxSteps = Annotated[int | None, typer.Option(help="The most requests of the turn.")]
MaxTokens = Annotated[
    int | None, typer.Option(help="The most tokens of one reply; if not given 8192, on AWS the model's own.")
]


@app.command()
def generate(
    prompt: Prompt,
    provider: Asked = Provider.anthropic,
    model: Model = None,
    tools: Tools = "",
    system: System = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    as_json: Json = False,
) -> int:
    """
    Run one turn and show it as it happens.

    Credentials come from the environment. anthropic: ANTHROPIC_API_KEY. google-ai: GEMINI_API_KEY. vertex:
    GOOGLE_CLOUD_PROJECT and application default credentials (GOOGLE_CLOUD_LOCATION, if not global). bedrock and
    sagemaker: AWS credentials as boto3 finds them (AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and
    AWS_DEFAULT_REGION.
    """
    asking = _Asking(prompt, provider, model, tools, system, max_steps, max_tokens)
    return interruptible(lambda stop: asking.shown(stop, as_json=as_json))


@app.command()
def record(
    prompt: Prompt,
    name: Annotated[str, typer.Option("--out", help="Where to: writes NAME.yaml, a cassette, and NAME.jsonl, a tape.")],
    provider: Asked = Provider.anthropic,
    model: Model = None,
    tools: Tools = "",
    system: System = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    as_json: Json = False,
) -> int:
    """
    Run one turn as generate does, and keep it: its traffic as a cassette, without keys, and its events as a tape.

    A reply is shown when it is whole, as it is recorded whole; so the tape has no times within a reply.
    """
    import vcr

    from rxloop.testing.cassette import vcr_config
    from rxloop.testing.tape import record_tape

    asking = _Asking(prompt, provider, model, tools, system, max_steps, max_tokens)
    cassette, tape = _recorded_files(name)
    # what was recorded earlier stays until there is traffic to put in its place
    recording, taping = (path.with_name(f"{path.name}.part") for path in (cassette, tape))

    async def work(stop: asyncio.Event) -> int:
        with vcr.VCR(**vcr_config()).use_cassette(str(recording), record_mode="all"):
            return await asking.shown(stop, as_json=as_json, through=lambda turn: record_tape(turn, taping))

    recording.unlink(missing_ok=True)
    status = interruptible(work)
    if recording.exists() and taping.exists():
        recording.replace(cassette)
        taping.replace(tape)
        said = f"recorded {cassette} and {tape}"
    else:
        taping.unlink(missing_ok=True)
        said = f"no reply came, so that {cassette} and {tape} were not written"
    if not as_json:
        print(said, file=sys.stderr)  # noqa: T201
    return status


def _recorded_files(name: str) -> tuple[Path, Path]:
    """Where a recording goes, known to be writable before anybody is asked."""
    bare = name.removesuffix(".yaml").removesuffix(".jsonl")
    if Path(bare).name in ("", "..") or bare.endswith(("/", os.sep, "/.")):
        raise ConfigurationError(f"--out must be a name, to which .yaml and .jsonl are added, but got {name!r}")
    cassette, tape = Path(f"{bare}.yaml"), Path(f"{bare}.jsonl")
    if not cassette.parent.is_dir():
        raise ConfigurationError(f"{cassette.parent} is not a directory: make it first")
    if not os.access(cassette.parent, os.W_OK):
        raise ConfigurationError(f"{cassette.parent} cannot be written")
    for path in (cassette, tape):
        if path.is_dir():
            raise ConfigurationError(f"{path} is a directory: give another name")
    return cassette, tape


class _Asking:
    """What one real turn is asked, checked before anything is opened."""

    def __init__(
        self,
        prompt: str,
        provider: Provider,
        model: str | None,
        tools: str,
        system: str | None,
        max_steps: int | None,
        max_tokens: int | None,
    ) -> None:
        from rxloop.cli.tools import TOOLS

        names = [name.strip() for name in tools.split(",") if name.strip()]
        for name in names:
            if name not in TOOLS:
                raise ConfigurationError(f"there is no tool {name!r}: the tools are {', '.join(sorted(TOOLS))}")
        self.prompt = _read_stdin() if prompt == "-" else prompt
        if not self.prompt.strip():
            raise ConfigurationError("the prompt is empty: say what to ask")
        for name, said in (("prompt", self.prompt), ("system prompt", system or ""), ("model", model or "")):
            _check_text(name, said)
        self.provider = provider
        self.model = model
        self.system = system
        self.max_steps = max_steps
        self.max_tokens = max_tokens
        self.tools = [TOOLS[name] for name in dict.fromkeys(names)]

    async def shown(
        self,
        stop: asyncio.Event,
        *,
        as_json: bool,
        through: Callable[[Observable[TurnEvent]], Observable[TurnEvent]] = lambda turn: turn,
    ) -> int:
        from rxloop.cli.providers import adapter_for

        async with adapter_for(self.provider, self.model, self.max_tokens) as adapter:
            turn = Turn(adapter, self.prompt, tools=self.tools, system=self.system, max_steps=self.max_steps, stop=stop)
            # `> answer.txt` gets the answer and nothing else
            with _view(as_json, notes=sys.stderr) as view:
                return await _shown(through(turn), view)


def _read_stdin() -> str:
    if sys.stdin is None:
        raise ConfigurationError("there is no stdin to read the prompt from")
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the prompt on stdin must be text in {error.encoding}") from error


def _check_text(name: str, said: str) -> None:
    try:
        said.encode()
    except UnicodeEncodeError as error:
        # what is not text comes from the command line as halves of surrogate pairs
        raise ConfigurationError(
            f"the {name} must be text in UTF-8, but character {error.start + 1} is none"
        ) from error


@app.command()
def replay(
    files: Annotated[list[str], typer.Argument(help="Cassettes in vcrpy's YAML, or event tapes (.jsonl).")],
    speed: Annotated[float, typer.Option(min=0, help="How fast a tape plays; 0 is at once.")] = 0.0,
    svg: Annotated[Path | None, typer.Option(help="Draw the turn into this file; the first of several.")] = None,
    as_json: Json = False,
) -> int:
    """Run recorded turns again. Needs no key and no network."""
    from reactivex import operators as ops

    from rxloop.operators import stop_on
    from rxloop.testing.replay import replay as rebuild
    from rxloop.testing.tape import replay_tape
    from rxloop.testing.timeline import watch

    async def work(stop: asyncio.Event) -> int:
        # all are read before the first is shown: bad input is known at once
        sources: list[tuple[str, Sequence[Observable[TurnEvent]]]] = [
            (
                file,
                [replay_tape(file, speed=speed).pipe(stop_on(stop))] if _is_tape(file) else rebuild(file, stop=stop),
            )
            for file in files
        ]
        status = 0
        timed: list[tuple[float, TurnEvent]] = []
        failures: list[Exception] = []
        for file, turns in sources:
            for turn in turns:
                if stop.is_set():
                    return status
                first = svg is not None and not timed
                seen = turn
                if first:
                    watched = watch(lambda moment, event: timed.append((moment, event)))
                    seen = turn.pipe(watched, ops.do_action(on_error=failures.append))
                with _view(as_json, {"file": file}) as view:
                    if isinstance(turn, Turn):
                        view.prompt(getattr(turn, "prompt", ""))
                    status = max(status, await _shown(seen, view, about=f"{file}: "))
                if first and svg is not None:
                    _write(svg, _timeline(file, timed, *failures).svg())
        return status

    return interruptible(work)


app.command()(serve)


def _is_tape(file: str) -> bool:
    return file.lower().endswith(".jsonl")


def _timeline(file: str, timed: list[tuple[float, TurnEvent]], failure: Exception | None = None) -> Timeline:
    """A tape is drawn with its own times, however fast it was played."""
    from rxloop.testing.timeline import Timeline

    return Timeline.from_tape(file) if _is_tape(file) else Timeline(timed, failure)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


async def _shown(turn: Observable[TurnEvent], view: View, *, about: str = "") -> int:
    """Show a turn to its end; a failure is shown too and gives the exit status."""
    try:
        async for event in _events(turn):
            view.show(event)
    except RxLoopError as error:
        view.fail(error)
        view.close()
        _complain(about + _described(error))
        no_key = isinstance(error, AuthenticationError) and error.status is None
        return 2 if no_key or isinstance(error, ConfigurationError) else 1
    return 0


async def _events(turn: Observable[TurnEvent], ahead: int = 256) -> AsyncIterator[TurnEvent]:
    async with iterate(turn, buffer=ahead) as events:
        async for event in events:
            yield event


@contextlib.contextmanager
def _view(as_json: bool, extra: dict[str, Any] | None = None, notes: IO[str] | None = None) -> Iterator[View]:
    view: View
    if as_json:
        view = JsonView(sys.stdout, extra)
    elif _is_terminal():
        view = TerminalView(Console())
    else:
        view = PlainView(sys.stdout, notes)
    try:
        yield view
    finally:
        view.close()


def _is_terminal() -> bool:
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _described(error: RxLoopError) -> str:
    status = f" (HTTP {error.status})" if error.status is not None else ""
    said = error.provider or ""
    kind = "" if isinstance(error, ConfigurationError) else f"{error.kind.replace('_', ' ')}{status}: "
    wait = f" (it asks to wait {error.retry_after:g} s)" if error.retry_after is not None else ""
    return f"{said}{': ' if said and kind else ''}{kind}{error.message}{wait}" if kind else error.message


def _complain(text: str) -> None:
    typer.echo(f"rxloop: {one_line(text)}", err=True)
