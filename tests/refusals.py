"""What a user is told when something is refused."""
from collections.abc import Callable

import pytest

from cpvt_mm.errors import UserError


def refusal(call: Callable[..., object], *args: object, error: type[Exception] = UserError, **kwargs: object) -> str:
    """The message of the error that a call ends with; it must be one line."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert '\n' not in message
    return message
