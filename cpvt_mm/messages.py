"""Messages for readers, among all that is logged."""
from mmengine.logging import MMLogger

# The attribute that marks their records.
SHOWN = 'is_shown'


def show(text: str) -> None:
    """Logs text that the console of a run prints, too."""
    lines = f'\n{text}' if '\n' in text else text  # of a table, all begin at the left
    MMLogger.get_current_instance().info(lines, extra={SHOWN: True})
