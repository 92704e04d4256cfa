"""The tests of projects use these fixtures of tests."""
from tests.conftest import isolated, run_tool  # noqa: F401
