"""What tests of rxloop, and of what is built on it, have in common."""

from rxloop.testing.grammar import check_grammar
from rxloop.testing.misbehaving import MISBEHAVIOURS, MisbehavingSource, Misbehaviour

__all__ = (
    "MISBEHAVIOURS",
    "MisbehavingSource",
    "Misbehaviour",
    "check_grammar",
)
