"""python -m deploy.monitoring: writes the dashboards and rules."""

from __future__ import annotations

from deploy.monitoring.generated import DEPLOY, files


def main() -> None:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(DEPLOY.parent))


if __name__ == "__main__":
    main()
