"""What tests of rxloop, and of what is built on it, have in common."""

from rxloop.testing.cassette import Interaction, read_cassette, vcr_config
from rxloop.testing.grammar import check_grammar
from rxloop.testing.misbehaving import MISBEHAVIOURS, MisbehavingSource, Misbehaviour
from rxloop.testing.replay import NOT_RECORDED, ReplayedTurn, replay
from rxloop.testing.tape import play_tape

__all__ = (
    "MISBEHAVIOURS",
    "NOT_RECORDED",
    "Interaction",
    "MisbehavingSource",
    "Misbehaviour",
    "ReplayedTurn",
    "check_grammar",
    "play_tape",
    "read_cassette",
    "replay",
    "vcr_config",
)
