"""The fixtures that users get from the plugin, which is not loaded for the other tests of this repository."""

from outbox.testing.pytest_plugin import assert_stashed, deliver, harvest_all, outbox_kit, run_chain, stashed

__all__ = ["assert_stashed", "deliver", "harvest_all", "outbox_kit", "run_chain", "stashed"]
