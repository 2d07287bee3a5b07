"""Fetches from a hub what the tower of one repository needs, and no more.

First the small files, which name the family; then the files that hold the tower's tensors. The hub's own client does
the transfers: its cache, its variables (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE), its progress bar.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from glob import escape
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import PROCESSOR_FILES, Checkpoint
from foveal.families.explain import CONFIG, names_in, no_config
from foveal.families.hub_errors import is_unreachable, sentence
from foveal.families.hub_ranges import reader
from foveal.families.tower_download import fetch, plan
from foveal.families.tower_plan import Names
from foveal.families.weight_files import INDEX, INDEX_END, read_index, tower_tensors, weight_file
from foveal.families.weights_at_start import ADAPTER, ADAPTER_WEIGHTS

log = logging.getLogger(__name__)
_SMALL_FILES = [CONFIG, *PROCESSOR_FILES, INDEX, ADAPTER]


class Repository:
    """One revision of a hub's repository. Methods block, and raise ConfigurationError with a sentence."""

    def __init__(self, name: str, revision: str | None) -> None:
        self.name, self.revision = name, revision
        self._commit: str | None = None

    def small_files(self) -> Path:
        """The snapshot's folder with config.json and its like; its name is the commit."""
        folder = self._download(self.revision, _SMALL_FILES)
        self._commit = folder.name
        if not (folder / CONFIG).exists():
            raise no_config(self.name, self._sizes or names_in(folder), is_hub=True)
        return folder

    def weights(self, checkpoint: Checkpoint, names: Names) -> Path:
        """The folder with the tower's tensors: the snapshot with the files that hold them, or an extract of these."""
        extracted = self._extract_folder()
        if extracted is not None and extracted.exists():
            return extracted
        there = self._sizes or dict.fromkeys(names_in(checkpoint.folder), 0)
        file = weight_file(self.name, checkpoint.config, there.keys())
        wanted, tower = [file], set[str]()
        if file.endswith(INDEX_END):
            if file != INDEX:
                self._download(self._commit, [escape(file)])
            index = read_index(checkpoint.folder / file)
            tower = tower_tensors(self.name, index.keys(), names)
            wanted = sorted({index[name] for name in tower})
        if ADAPTER in there and ADAPTER_WEIGHTS in there:
            wanted.append(ADAPTER_WEIGHTS)
        elif extracted is not None:
            sizes = {name: there.get(name, 0) for name in wanted}
            if self._extract(checkpoint.folder, sizes, tower, names, extracted):
                return extracted
        size = sum(there.get(name, 0) for name in wanted)
        log.info("fetching weights", extra={"model": self.name, "files": wanted, "bytes": size})
        return self._download(self._commit, [escape(name) for name in wanted])

    def _extract(self, folder: Path, files: dict[str, int], tower: set[str], names: Names, extracted: Path) -> bool:
        """Fetch the tower's bytes alone, where that saves much and nothing is there yet."""
        if not self._sizes or any((folder / name).exists() for name in files):
            return False
        with self._told():
            read = reader(self.name, str(self._commit))
            extract = plan(files, lambda found: tower or tower_tensors(self.name, found, names), read) if read else None
            if extract is None or read is None:
                return False
            told = {"model": self.name, "files": list(files), "bytes": extract.nbytes, "of_bytes": sum(files.values())}
            log.info("fetching the vision tower out of larger files", extra=told)
            small = [path for name in (CONFIG, *PROCESSOR_FILES) if (path := folder / name).exists()]
            fetch(extract, small, extracted, read)
        return True

    def _extract_folder(self) -> Path | None:
        """Where an extract lies or may be put; None where only the hub's own cache can be written."""
        from huggingface_hub import cached_assets_path, constants

        try:
            root = constants.HF_ASSETS_CACHE
            folder = cached_assets_path("foveal", namespace="towers", subfolder=self.name, assets_dir=root)
        except (OSError, ValueError) as error:
            log.warning("whole files are fetched: HF_ASSETS_CACHE cannot be written", extra={"why": str(error)})
            return None
        extract = folder / str(self._commit)
        return extract if extract.exists() or os.access(folder, os.W_OK) else None

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """All files of the repository and their bytes; none where the hub cannot be reached: then the cache must do."""
        from huggingface_hub import HfApi

        with self._told():
            try:
                siblings = HfApi().model_info(self.name, revision=self._commit, files_metadata=True).siblings
            except Exception as error:
                if not is_unreachable(error):
                    raise
                log.warning("the hub cannot be reached: its cache must do", extra={"model": self.name})
                return {}
        return {file.rfilename: file.size or 0 for file in siblings or []}

    def _download(self, revision: str | None, patterns: list[str]) -> Path:
        from huggingface_hub import snapshot_download

        with self._told():
            return Path(snapshot_download(self.name, revision=revision, allow_patterns=patterns))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the hub's client raises into a sentence; what is none of its errors stays."""
        try:
            yield
        except Exception as error:
            said = sentence(self.name, self.revision, error)
            if said is None:
                raise
            raise ConfigurationError(f"--model {self.name}: {said}") from None
