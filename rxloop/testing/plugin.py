"""A pytest plugin: a recording of what providers said for each test, played back without a network or a key.

It does nothing in tests that have neither the fixture nor the marker `cassette`. Needs the extra ``test``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, get_args

import pytest

from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import read_cassette, vcr_config
from rxloop.testing.matching import ComparedRequest, compared, difference, most_similar

__all__ = ("RecordMode", "Recording", "cassette")

RecordMode: TypeAlias = Literal["none", "once", "new", "all"]
"""``none`` plays alone, ``once`` records a file that is missing, ``new`` adds what is not recorded, ``all`` anew."""

_VCR_MODES: Mapping[str, str] = {"none": "none", "once": "once", "new": "new_episodes", "all": "all"}
_OPTION = "--rxloop-record"
_MARKER = "cassette"
_LONGEST_NAME = 120
_MOST_DIFFERENCES = 3
_SUFFIXES = (".yaml", ".yml")

_REFUSED = "no recorded request matches"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records."""
    parser.getgroup("rxloop").addoption(
        _OPTION,
        choices=get_args(RecordMode),
        default=None,
        help="what the cassettes of tests do: none plays them back (the default), once records those that are missing, "
        "new adds requests that are not recorded, all records anew; it overrules the markers",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "cassette(name=None, *, record='none', ignore=(), base_url=None): record what providers say to the test and "
        "play it back (rxloop). name: of the file; record: none, once, new or all; ignore: paths of the JSON body that "
        "may differ, as 'metadata.user_id'; base_url: written in place of the scheme and host that were asked.",
    )
    config.stash[_recorded] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the marker do what the fixture does."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(_MARKER) and _MARKER not in item.fixturenames:
            # the list is shared with the other parameters of the test
            item.fixturenames = [*item.fixturenames, _MARKER]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that sent what is not recorded, whatever became of the provider's error in it."""
    recording = item.stash.get(_recording, None)
    if recording is None:
        return (yield)
    try:
        result = yield
    except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
        recording.failed = True
        raise
    except BaseException as error:
        recording.failed = True
        if not recording.unmatched:
            raise
        if _REFUSED not in str(error):
            shown = str(item.repr_failure(pytest.ExceptionInfo.from_exception(error)))
            item.add_report_section("call", "failure of the test itself", shown)
        # what led to it is the refusal itself, several times over
        raise recording.failure(_where(error, item)) from None
    if getattr(item, "_excinfo", None):
        # unittest keeps its failures, and pytest shows them in place of any other
        recording.failed = True
        item.add_report_section("call", "requests", "\n\n".join(recording.unmatched))
    elif recording.unmatched:
        recording.failed = True
        raise recording.failure()
    return result


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """What providers say to this test: played back from a file, or recorded into it (see ``--rxloop-record``)."""
    item = request.node
    options = _options(item)
    path = _path(item, options.name)
    mode: RecordMode = item.config.getoption(_OPTION) or options.record
    shown = _shown(path, item.config)
    if mode == "none" and not path.exists():
        command = f"pytest {_OPTION}=once {shlex.quote(item.nodeid)}"
        pytest.fail(f"there is no recording at {shown}\nrecord it with: {command}", pytrace=False)
    # a second test with the same file adds to what the first has recorded
    anew = mode == "all" and path not in item.config.stash[_recorded]
    if path.exists() and not anew:
        try:
            read_cassette(path)
        except ConfigurationError as error:
            pytest.fail(f"the recording cannot be played: {error}", pytrace=False)
    recording = Recording(path, mode, shown=shown, node=item.nodeid, ignore=options.ignore)
    item.stash[_recording] = recording
    with recording.used(options.base_url, anew=anew):
        yield recording
    if recording.recorded:
        item.config.stash[_recorded].add(path)
    if recording.unmatched and not recording.failed:
        # they were made by another fixture, before the test or after it
        raise recording.failure()


class Recording:
    """
    The recording of one test: the value of the fixture `cassette`.

    Args:
        path: its file.
        mode: what happens to requests.
        shown: the path as it is named in messages.
        node: the test's node id.
        ignore: paths of the JSON body that are not compared.
    """

    def __init__(self, path: Path, mode: RecordMode, *, shown: str, node: str, ignore: Sequence[str] = ()) -> None:
        self.path = path
        self.mode = mode
        self.failed = False
        """Whether the test failed: then nothing is written."""

        self.unmatched: list[str] = []
        """What is different in each request that is not recorded, for people."""

        self._shown = shown
        self._node = node
        self._cassette: Any = None
        self._loaded = 0
        self._refused: set[ComparedRequest] = set()
        self._compared = lru_cache(256)(lambda *request: compared(*request, ignore=ignore))

    def __repr__(self) -> str:
        return f"<Recording {self._shown} {self.mode}>"

    @property
    def played(self) -> int:
        """How many responses were played back."""
        return int(self._cassette.play_count)

    @property
    def recorded(self) -> int:
        """How many requests went to the provider, and were recorded."""
        return len(self._cassette) - self._loaded

    def assert_complete(self) -> None:
        """
        Check that every recorded response was played.

        Raises:
            AssertionError: some were not.
        """
        left = [
            f"  {place + 1}. {self._of(request)}" for place, request in self._requests() if not self._is_played(place)
        ]
        if left:
            raise AssertionError("\n".join([f"every response of {self._shown} must be played, but not", *left]))

    def failure(self, then: str | None = None) -> BaseException:
        """
        What a test that sent something else fails with.

        Args:
            then: what became of it in the test.
        """
        more = len(self.unmatched) - _MOST_DIFFERENCES
        parts = self.unmatched[:_MOST_DIFFERENCES]
        if more > 0:
            parts = [*parts, f"… and {more} more"]
        again = f"if it should be so, record it again: pytest {_OPTION}=all {shlex.quote(self._node)}"
        return pytest.fail.Exception("\n\n".join([*parts, *filter(None, [then]), again]), pytrace=False)

    @contextlib.contextmanager
    def used(self, base_url: str | None, *, anew: bool) -> Iterator[None]:
        """Put the recording in the network's place."""
        try:
            import vcr
            from vcr.cassette import CassetteNotFoundError
            from vcr.errors import UnhandledHTTPRequestError
        except ImportError:
            pytest.fail('a cassette needs vcrpy: pip install "rxloop[test]"', pytrace=False)
        recorder = vcr.VCR(**vcr_config(base_url=base_url))
        recorder.register_matcher("rxloop", lambda one, other: self._of(one) == self._of(other))
        if anew:

            def nothing(*_: Any, **__: Any) -> Any:
                raise CassetteNotFoundError

            save = recorder.persister.save_cassette
            recorder.register_persister(SimpleNamespace(load_cassette=nothing, save_cassette=save))
        context = recorder.use_cassette(
            self.path, record_mode=_VCR_MODES[self.mode], match_on=("rxloop",), record_on_exception=False
        )
        self._cassette = context.__enter__()
        self._loaded = len(self._cassette)
        try:
            self._play_exact_ones_first()
            self._refuse_others(UnhandledHTTPRequestError)
            yield
        finally:
            # what a test that failed has recorded may be the failure itself
            context.__exit__(*((AssertionError,) * self.failed))

    def _play_exact_ones_first(self) -> None:
        """Of recorded requests that differ in nothing but what is not compared, prefer the one that is the same."""
        responses = self._cassette._responses

        def ordered(request: Any) -> list[tuple[int, Any]]:
            sent = self._cassette.filter_request(request).body
            return sorted(responses(request), key=lambda item: bool(self._cassette.requests[item[0]].body != sent))

        self._cassette._responses = ordered

    def _refuse_others(self, unhandled: type[Exception]) -> None:
        """
        Answer what is not recorded and may not be with an error of the provider's, and remember it.

        An exception of the transport's would be wrapped, and retried as a lost connection.
        """
        cassette = self._cassette
        can_play, play = cassette.can_play_response_for, cassette.play_response

        def can_play_or_refuse(request: Any) -> bool:
            if can_play(request):
                return True
            filtered = cassette.filter_request(request)
            if not filtered or not cassette.write_protected:
                return False
            self._refuse(filtered)
            return True

        def play_or_refuse(request: Any) -> Any:
            if can_play(request):
                # another thread may have taken it in between
                with contextlib.suppress(unhandled):
                    return play(request)
            return _refusal(f"{_REFUSED} {self._of(cassette.filter_request(request))}: see the test's report")

        cassette.can_play_response_for = can_play_or_refuse
        cassette.play_response = play_or_refuse

    def _refuse(self, request: Any) -> None:
        sent = self._of(request)
        if sent in self._refused:
            return
        self._refused.add(sent)
        recorded = [(place, self._of(item)) for place, item in self._requests()]
        left = [(place, item) for place, item in recorded if not self._is_played(place)]
        lines = [f"{_REFUSED}: {sent}"]
        same = [str(place + 1) for place, item in recorded if item == sent]
        if same:
            lines.append(f"it is number {', '.join(same)} of {len(recorded)} in {self._shown}, and was played already")
        found = most_similar(sent, [item for _, item in left or recorded])
        if found is None or (same and not left):
            self.unmatched.append("\n".join(lines))
            return
        place, nearest = (left or recorded)[found]
        which = "the most similar one that was not played yet" if left else "the most similar one, and all were played"
        lines.append(f"compared with number {place + 1} of {len(recorded)} in {self._shown}, {which}:")
        self.unmatched.append("\n".join([*lines, difference(sent, nearest, name=f"recorded {place + 1}")]))

    def _of(self, request: Any) -> ComparedRequest:
        return self._compared(request.method, request.uri, request.body)

    def _requests(self) -> list[tuple[int, Any]]:
        return list(enumerate(self._cassette.requests))

    def _is_played(self, place: int) -> bool:
        return bool(self._cassette.play_counts[place])


_recording = pytest.StashKey[Recording]()
_recorded = pytest.StashKey[set[Path]]()
"""The files that were recorded in this run."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What the markers of a test say."""

    name: str | None = None
    record: RecordMode = "none"
    ignore: tuple[str, ...] = ()
    base_url: str | None = None


def _where(error: BaseException, item: pytest.Item) -> str:
    """Where in the test an error came to light."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(item.path)]
    place = f" in line {lines[-1]} of {item.path.name}" if lines else ""
    return f"the test ended with {type(error).__name__}{place}"


def _options(item: pytest.Item) -> _Options:
    """The options of a test: those of its own marker before those of its class and module."""
    given: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(_MARKER))):
        given.update(zip(("name",), marker.args, strict=False), **marker.kwargs)
        if len(marker.args) > 1:
            _misused(f"takes one name, but got {marker.args!r}")
    unknown = given.keys() - {"name", "record", "ignore", "base_url"}
    if unknown:
        _misused(f"takes name, record, ignore and base_url, but got {', '.join(sorted(unknown))}")
    ignore = given.get("ignore", ())
    if isinstance(ignore, str):
        ignore = (ignore,)
    if not (isinstance(ignore, Iterable) and all(isinstance(path, str) and path for path in ignore)):
        _misused(f"must ignore paths such as 'metadata.user_id', but got {ignore!r}")
    given["ignore"] = tuple(ignore)
    options = _Options(**given)
    if options.record not in _VCR_MODES:
        _misused(f"must record {', '.join(_VCR_MODES)}, but got {options.record!r}")
    if options.name is not None and not (isinstance(options.name, (str, os.PathLike)) and os.fspath(options.name)):
        _misused(f"must name a file, but got {options.name!r}")
    return options


def _misused(what: str) -> None:
    pytest.fail(f"the marker {_MARKER} {what}", pytrace=False)


def _path(item: pytest.Item, name: str | None) -> Path:
    """The file of a test; a name with a suffix is a path of its own."""
    folder = item.path.parent
    if name is not None and os.fspath(name).endswith(_SUFFIXES):
        return folder / name
    if name is None:
        # classes, as they are nested
        names = [part.name for part in item.listchain() if isinstance(part, pytest.Class)]
        name = ".".join([*names, item.name])
    return folder / "cassettes" / item.path.stem / f"{_file_name(os.fspath(name))}.yaml"


def _file_name(name: str) -> str:
    """A name that every file system takes, another one for each."""
    plain = re.sub(r"[^\w.,=+@\[\]-]+", "-", name, flags=re.ASCII)
    if plain == name and len(name) <= _LONGEST_NAME:
        return name
    return f"{plain[:_LONGEST_NAME]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _shown(path: Path, config: pytest.Config) -> str:
    """A path as the person who ran pytest would write it."""
    for start in (config.invocation_params.dir, config.rootpath):
        if path.is_relative_to(start):
            return str(path.relative_to(start))
    return str(path)


def _refusal(message: str) -> dict[str, Any]:
    """A response that each of the providers' SDKs reads as a request that was wrong, which nobody repeats."""
    error = {"type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT", "message": message}
    body = {"type": "error", "error": error, "message": message}
    return {
        "status": {"code": 400, "message": "Bad Request"},
        "headers": {"content-type": ["application/json"], "x-amzn-errortype": ["ValidationException"]},
        "body": {"string": json.dumps(body).encode()},
    }
