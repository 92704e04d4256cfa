import pytest

from cpvt_lab.candidates import Candidate, CannotMeasure
from cpvt_lab.memory import measure_alone

from .subjects import MB, SETTING, Told


def test_counts_what_is_held_and_what_a_call_adds() -> None:
    usage = measure_alone(Told(), Candidate('holder', dict(megabytes=20)), SETTING)
    assert usage.bytes == pytest.approx((8 + 20) * MB, abs=2 * MB)
    assert usage.first_call > 0


@pytest.mark.parametrize('candidate, limit, sentence', [
    (Candidate('holder', dict(megabytes=80)), 40 * MB, 'out of memory'),
    (Candidate('fails'), None, 'fails does not run (ValueError: it is told to).'),
    (Candidate('dies'), None, 'out of memory, or another reason for which its process was killed'),
])
def test_what_goes_wrong_is_told(candidate: Candidate, limit: int | None, sentence: str) -> None:
    with pytest.raises(CannotMeasure) as error:
        measure_alone(Told(), candidate, SETTING, limit)
    assert str(error.value) == sentence
