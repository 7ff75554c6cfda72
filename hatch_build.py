"""The project's URLs in the metadata: those of the repository whose workflow builds it; elsewhere there are none."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Fills `project.urls`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what GitHub Actions tells of the repository."""
        server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        if not server or not repository:
            return
        home = f"{server}/{repository}"
        metadata["urls"] = {
            "Homepage": home,
            "Documentation": f"{home}/blob/main/docs/README.md",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
            "Source": home,
        }
