"""A run that has secrets, and uses them, writes and prints none."""
import logging
import sys
from pathlib import Path

import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, VISBACKENDS
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend

from openmmlab_runs.engine import load_config, train
from openmmlab_runs.errors import exit_on_error
from tests.conftest import UPERNET, toy_overrides

SECRET = "S3cr3t/+of'a\\run"
FORMS = ('S3cr3t', '5h0rt', 'C0ns')


class LoudHook(Hook):
    """Tells its secrets in all ways that a hook has, and fails if it should."""

    def __init__(self, headers: list[tuple[str, str]], github_token: str, fails: bool) -> None:
        self.told, self.fails = f'{headers} {github_token}', fails

    def before_train(self, runner: Runner) -> None:
        runner.message_hub.update_info('told', self.told)
        runner.logger.info(self.told)
        logging.getLogger('of.another.library').warning('%s', self.told)
        print(self.told)
        print(self.told, file=sys.stderr)
        if self.fails:
            raise RuntimeError(self.told)


class LoudBackend(LocalVisBackend):
    """A backend that logs in."""

    def __init__(self, save_dir: str, init_kwargs: dict[str, str]) -> None:
        super().__init__(save_dir)
        assert init_kwargs['wandb_token'] == SECRET


@pytest.mark.slow
@pytest.mark.parametrize(('fails', 'verbose'), [(False, False), (False, True), (True, False)])
def test_a_run_writes_and_prints_no_secret(fails: bool, verbose: bool, toy_shapes: Path, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setenv('MY_TOKEN', 'C0nst4nt')
    monkeypatch.setitem(HOOKS.module_dict, 'LoudHook', LoudHook)
    monkeypatch.setitem(VISBACKENDS.module_dict, 'LoudBackend', LoudBackend)
    logging.getLogger('of.another.library').addHandler(logging.FileHandler(tmp_path / 'library.log'))
    config = tmp_path / 'my.py'
    config.write_text(f"""
_base_ = {str(UPERNET)!r}
my_note = '{{{{$MY_TOKEN:x}}}}'
env_cfg = dict(db_pass={SECRET!r}, secret=dict(value=['5h0rt']), encryption_key='img', auth='fork')
visualizer = dict(vis_backends=[dict(type='LoudBackend', init_kwargs=dict(wandb_token={SECRET!r}))])
default_hooks = dict(loud=dict(type='LoudHook', headers=[('Authorization', {SECRET!r})], github_token={SECRET!r},
                               fails={fails}))
""", encoding='utf-8')
    cfg = load_config(config, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 100, 'log_level': 'INFO'}), str(tmp_path / 'work'))
    if fails:
        with pytest.raises(SystemExit) as end:
            exit_on_error(lambda: train(cfg))()
        assert '***' in end.value.code and not [form for form in FORMS if form in end.value.code]
    else:
        train(cfg, verbose=verbose)
    assert cfg.env_cfg.db_pass == SECRET and cfg.env_cfg.auth == 'fork'
    files = [path for path in tmp_path.rglob('*') if path.is_file() and path != config]
    assert {'library.log', 'my.py', 'traceback.txt' if fails else 'iter_1.pth'} <= {path.name for path in files}
    shown = ''.join(capfd.readouterr())
    texts = {str(path): path.read_bytes().decode('utf-8', 'replace') for path in files}
    for name, text in {**texts, 'console': shown}.items():
        assert not [form for form in (*FORMS, "'encryption_key': 'img'", 'auth: fork') if form in text], name
    log = next(text for name, text in texts.items() if name.endswith('.log') and 'library' not in name)
    assert "mp_start_method='fork'" in log and "'mp_start_method': 'fork'" in log  # a word stays
    assert '***' in shown
