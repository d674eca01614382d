"""The names that are promised, and the floors of the house: an import never goes up."""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import rxloop
from rxloop import adapters, operators

ROOT = Path(__file__).parent.parent

PUBLIC = """
    Adapter AuthenticationError Breaker BufferOverflowError CancellationToken CapReached Channel ConfigurationError
    ConnectionFailedError ContextOverflowError ContextReclaimed FinishReason HotTurn InvalidOutputError
    InvalidRequestError
    Limits MalformedResponseError MalformedRetried ModelNotFoundError Output Overflow OverloadedError Partial
    PermissionDeniedError ProviderError RateLimitedError ReasoningDelta Reclaim Renewal RetryPolicy RetryScheduled
    RxLoopError ServerError Signature StepFinished StepResult StepStarted StreamInterruptedError
    TOOL_PERMANENTLY_FAILED TextDelta TimedOutError Tool ToolCall ToolCallDelta ToolCallReceived ToolCallStarted
    ToolContext ToolDeclaration ToolFinished ToolProgress ToolResult ToolStarted Turn TurnEvent TurnFinished
    TurnResult TurnStarted UnknownEvent Usage UsageLimitError UsageUpdated Watcher
    __version__ event_from_dict iterate tool
"""

PUBLIC_OPERATORS = """
    CapReached Journal MalformedBudget OutputState Renew Renewal RetryPolicy Stop coalesce_text deadline loop_steps
    partial_output
    retry_before_first_emit retry_malformed_call stall_watchdog step_cap step_deadline stop_on structured_output
    text tool_calls tool_dispatch turn_deadline usage_limit usage_scan
"""

PUBLIC_ADAPTERS = """
    AnthropicAdapter AutoPayload BedrockAdapter GeminiAdapter PayloadDecoder SageMakerAdapter StreamRequest TextStream
    inputs_body messages_body
"""

VALUES, OPERATORS, ADAPTERS, ENGINE, FACES = range(1, 6)

FLOORS = {
    "batch": VALUES,
    "breaker": VALUES,
    "outlet": VALUES,
    "reclaim": VALUES,
    "checks": VALUES,
    "clock": VALUES,
    "demand": VALUES,
    "errors": VALUES,
    "events": VALUES,
    "invocation": VALUES,
    "limits": VALUES,
    "merging": VALUES,
    "output": VALUES,
    "steps": VALUES,
    "tools": VALUES,
    "usage": VALUES,
    "operators": OPERATORS,
    "adapters": ADAPTERS,
    "channel": ENGINE,
    "context": ENGINE,
    "event_log": ENGINE,
    "hot": ENGINE,
    "watcher": ENGINE,
    "run": ENGINE,
    "turn": ENGINE,
    "cli": FACES,
    "testing": FACES,
    "ui": FACES,
}
NAMES = {VALUES: "values", OPERATORS: "operators", ADAPTERS: "adapters", ENGINE: "the engine", FACES: "the faces"}


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the package, by its name."""
    for folder, prefix in ((ROOT / "rxloop", ""), (ROOT / "operators", "operators"), (ROOT / "adapters", "adapters")):
        for path in sorted(folder.rglob("*.py")):
            parts = [*([prefix] if prefix else []), *path.relative_to(folder).with_suffix("").parts]
            if parts[0] in ("operators", "adapters") and not prefix:
                continue
            if parts[-1] == "__init__":
                parts.pop()
            yield ".".join(["rxloop", *parts]), path


MODULES = dict(sources())
every_module = pytest.mark.parametrize("module", MODULES)


def floor(module: str) -> int:
    _, *parts = module.split(".")
    # the package itself gathers everything up to the engine
    return FLOORS[parts[0]] if parts else ENGINE


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """What a file imports of the package when it runs, with the line."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports must be absolute"
            name = node.module or ""
            for alias in node.names:
                whole = f"{name}.{alias.name}"
                yield node.lineno, whole if whole in MODULES else name
        pending += ast.iter_child_nodes(node)


def test_the_public_names_are_these() -> None:
    assert sorted(rxloop.__all__) == sorted(PUBLIC.split())
    assert sorted(operators.__all__) == sorted(PUBLIC_OPERATORS.split())
    assert sorted(adapters.__all__) == sorted(PUBLIC_ADAPTERS.split())
    assert [name for name in adapters.__all__ if not hasattr(adapters, name)] == []


@pytest.mark.parametrize("package", [rxloop, operators], ids=["rxloop", "rxloop.operators"])
def test_nothing_else_is_to_be_seen(package: types.ModuleType) -> None:
    visible = {
        name for name, value in vars(package).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert visible <= set(package.__all__)


def test_every_folder_and_file_has_a_floor() -> None:
    assert {module.split(".")[1] for module in MODULES if module != "rxloop"} <= set(FLOORS)
    assert {"rxloop", "rxloop.turn", "rxloop.operators.loop_steps", "rxloop.adapters.base"} <= set(MODULES)


@every_module
def test_an_import_never_goes_up(module: str) -> None:
    for line, imported in imports(MODULES[module]):
        if imported.split(".")[0] != "rxloop":
            continue
        assert floor(imported) <= floor(module), (
            f"{MODULES[module]}:{line}: {module} is on the floor of {NAMES[floor(module)]} and must not import "
            f"{imported}, which is on that of {NAMES[floor(imported)]}"
        )
        if floor(module) == ADAPTERS:
            assert floor(imported) != OPERATORS, f"{MODULES[module]}:{line}: an adapter must know no operator"


def test_the_channel_knows_values_alone() -> None:
    imported = [name for _, name in imports(MODULES["rxloop.channel"]) if name.startswith("rxloop")]
    assert imported
    assert {floor(name) for name in imported} == {VALUES}


@pytest.mark.parametrize("module", [module for module in MODULES if not module.endswith(".__main__")])
def test_every_module_says_what_is_public(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert len(listed) == 1, f"{module} must have one __all__"
    [names] = listed
    assert isinstance(names, tuple), f"{module}.__all__ must be a tuple"
    assert len(set(names)) == len(names)
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []


@every_module
def test_every_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


def test_every_operator_has_its_file_and_its_test() -> None:
    for name in operators.__all__:
        value = getattr(operators, name)
        if inspect.isfunction(value):
            assert value.__module__ == f"rxloop.operators.{name}"
            assert (ROOT / "tests" / "operators" / f"test_{name}.py").is_file()
            assert ".. marble::" in (value.__doc__ or "")
