"""An app with consumers, as the processes of the tests run them."""
