"""What tests of rxloop, and of what is built on it, have in common."""

from rxloop.testing.cassette import Interaction, read_cassette, vcr_config
from rxloop.testing.grammar import check_grammar
from rxloop.testing.marbles import assert_marbles, marbles
from rxloop.testing.misbehaving import MISBEHAVIOURS, MisbehavingSource, Misbehaviour
from rxloop.testing.replay import NOT_RECORDED, ReplayedTurn, replay
from rxloop.testing.scripted_adapter import CallTool, ScriptedAdapter, Think, Wait, said
from rxloop.testing.tape import record_tape, replay_tape
from rxloop.testing.timeline import Timeline

__all__ = (
    "MISBEHAVIOURS",
    "NOT_RECORDED",
    "CallTool",
    "Interaction",
    "MisbehavingSource",
    "Misbehaviour",
    "ReplayedTurn",
    "ScriptedAdapter",
    "Think",
    "Timeline",
    "Wait",
    "assert_marbles",
    "check_grammar",
    "marbles",
    "read_cassette",
    "record_tape",
    "replay",
    "replay_tape",
    "said",
    "vcr_config",
)
