"""The statements behind `outbox.operations`, its commands and its pages of the admin."""
