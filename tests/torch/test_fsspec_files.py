"""torch's classes for what fsspec knows, by the name that this version of torch has for their module."""

from __future__ import annotations

import warnings

import pytest

from edriver.worker.backend import checks, fsspec_files


def test_the_classes_are_found_and_imported_without_a_warning() -> None:
    assert fsspec_files.is_there()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(fsspec_files.writer("memory://somewhere")).__name__ == "FsspecWriter"
        assert type(fsspec_files.reader("memory://somewhere")).__name__ == "FsspecReader"


def test_a_torch_without_them_is_reported_at_the_start_and_refuses_such_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fsspec_files, "_MODULES", ("torch.distributed.checkpoint.moved",))
    (finding,) = [found for found in checks.found_by(checks.PROCESS_CHECKS) if found.name == "checkpoints"]
    assert finding.trouble == "torch.distributed.checkpoint has no fsspec_filesystem"
    with pytest.raises(ImportError, match="keep checkpoints in a local folder"):
        fsspec_files.writer("memory://somewhere")
