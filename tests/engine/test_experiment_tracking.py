"""Losses of a run in TensorBoard and MLflow, by mmengine's visualization backends."""
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cpvt_mm.engine import load_config, train
from tests.conftest import UPERNET, toy_overrides

pytestmark = pytest.mark.slow


def run(toy_shapes: Path, work_dir: Path, backend: str) -> Path:
    """Trains for two iterations with a backend; returns the folder that it writes to."""
    options = toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100, 'visualizer.vis_backends.0.type': backend})
    train(load_config(UPERNET, options, str(work_dir)))
    [folder] = work_dir.glob('*/vis_data')
    return folder


def test_tensorboard(toy_shapes: Path, tmp_path: Path) -> None:
    events = EventAccumulator(str(run(toy_shapes, tmp_path, 'TensorboardVisBackend'))).Reload()
    losses = events.Scalars('decode.loss_ce')
    assert [loss.step for loss in losses] == [1, 2]
    assert all(loss.value > 0 for loss in losses)


def test_mlflow_with_a_file_store(toy_shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in requirements/tests.txt: it brings more than thirty packages.
    mlflow = pytest.importorskip('mlflow', reason='pip install mlflow-skinny')
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow 3 refuses files without it
    folder = run(toy_shapes, tmp_path, 'MLflowVisBackend')
    client = mlflow.MlflowClient(tracking_uri=f'file://{folder}')
    [experiment] = client.search_experiments()
    [done] = client.search_runs([experiment.experiment_id])
    assert done.info.status == 'FINISHED'
    assert done.data.params['model.backbone.type'] == 'cpvt_mm.PyramidCPVT'
    assert [metric.step for metric in client.get_metric_history(done.info.run_id, 'decode.loss_ce')] == [1, 2]
