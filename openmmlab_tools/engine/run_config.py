"""The config of a run, whose copies have no secrets."""
import json
import math
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config

from openmmlab_tools.config_text import assignments, without_templates
from openmmlab_tools.files import write_text
from openmmlab_tools.redaction import redact


class RunConfig(Config):
    """mmengine's config, but its texts and its dict have no secrets, and no templates that a reader would replace."""

    def to_dict(self, keep_imported: bool = False) -> dict[str, Any]:
        return redact(super().to_dict(keep_imported))[0]

    def __repr__(self) -> str:
        return f'Config (path: {self.filename}): {self.to_dict()}'

    @property
    def pretty_text(self) -> str:
        return assignments(self.to_dict())

    def dump(self, file: str | Path | None = None) -> str | None:
        """Writes Python, JSON or YAML, by the suffix of the file; without a file, returns it for the config's own."""
        suffix = Path(file or self.filename or '.py').suffix
        if suffix == '.json':
            text = without_templates(json.dumps(self.to_dict(), default=str), r'\u007b')
        elif suffix in ('.yaml', '.yml'):
            text = without_templates(yaml.dump(self.to_dict(), Dumper=_Dumper, width=math.inf, sort_keys=False))
        else:
            text = self.pretty_text
        if file is None:
            return text
        write_text(Path(file), text)
        return None


class _Dumper(yaml.Dumper):
    """Writes YAML with quotes around what looks like a template, so that it can have escapes."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, '"' if '{{' in text else None))


def of_run(cfg: Config) -> Config:
    """Returns a config as a `RunConfig`, with the same content."""
    run = RunConfig.__new__(RunConfig)
    run.__setstate__(cfg.__getstate__())
    redact(run.env_variables)  # finds secrets also if their keys in the config are no names of any
    secrets_of(run)
    return run


def secrets_of(cfg: Config) -> list[str]:
    """Returns the names of the secrets in a config."""
    return redact(Config.to_dict(cfg))[1]
