"""At the end of `make stock`, counts the configs of each family that were swapped, refused or not available."""
from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a line for each family: how many configs took which backbone, were skipped, or failed."""
    counts: dict[str, Counter[str]] = {}
    for outcome in ('passed', 'skipped', 'failed'):
        for report in terminalreporter.getreports(outcome):
            known = dict(report.user_properties)
            if 'family' in known:
                counts.setdefault(known['family'], Counter())[known.get('backbone', outcome)] += 1
    for family, outcomes in counts.items():
        counted = ', '.join(f'{number} {outcome}' for outcome, number in outcomes.items())
        terminalreporter.write_line(f'{family}: {counted}')
