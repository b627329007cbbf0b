"""What is said of wrong settings."""

import pytest

from outbox import conf


def errors_of(raw):
    with pytest.raises(conf.ConfErrors) as caught:
        conf.parse(raw)
    return {error.key: str(error) for error in caught.value.errors}


def text_of(key, value):
    try:
        conf.parse({key: value})
    except conf.ConfErrors as errors:
        return str(errors)
    return ""  # some take any text
