import pytest

pytest.register_assert_rewrite(
    *(f"tests.simulation.conformance.{name}" for name in ("cases", "consumer_cases", "consumer_topics"))
)
