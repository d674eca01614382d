"""What tests of rxloop, and of what is built on it, have in common."""

from rxloop.testing.cassette import Interaction, read_cassette, vcr_config
from rxloop.testing.grammar import check_grammar
from rxloop.testing.misbehaving import MISBEHAVIOURS, MisbehavingSource, Misbehaviour
from rxloop.testing.replay import NOT_RECORDED, ReplayedTurn, replay
from rxloop.testing.tape import record_tape, replay_tape

__all__ = (
    "MISBEHAVIOURS",
    "NOT_RECORDED",
    "Interaction",
    "MisbehavingSource",
    "Misbehaviour",
    "ReplayedTurn",
    "check_grammar",
    "read_cassette",
    "record_tape",
    "replay",
    "replay_tape",
    "vcr_config",
)
