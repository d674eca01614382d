from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

SAMPLE = Path(__file__).parent / "typing_test" / "public.py"


@pytest.mark.timeout(120)
def test_a_type_checker_knows_the_public_api() -> None:
    output, errors, status = api.run(["--strict", "--no-error-summary", "--explicit-package-bases", str(SAMPLE)])
    assert (status, output, errors) == (0, "", "")
