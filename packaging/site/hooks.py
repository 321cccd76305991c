"""The pages of the site: the repository's, at the same places, and the man pages in reference/."""

import os
import re
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

# `cargo xtask docs` sets both: the repository, and the directory with the man pages.
ROOT = Path(os.environ["MPSD_ROOT"])
MANUAL = Path(os.environ["MPSD_MANUAL"])
MANUALS = sorted(path.name for path in MANUAL.iterdir())


def title(manual):
    name, section = manual.rsplit(".", 1)
    return f"{name}({section})"


def on_files(files, config):
    for path in filter(Path.is_file, [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*")]):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    for name in ("site.css", "search.js"):
        files.append(File.generated(config, name, abs_src_path=str(Path(__file__).with_name(name))))
    for manual in MANUALS:
        files.append(File.generated(config, f"reference/{manual}.md", content=reference(manual)))
    return files


def reference(manual):
    """mandoc's HTML, with its headings one level lower and links to the other man pages."""
    command = ["/usr/bin/mandoc", "-T", "html", "-O", "fragment", str(MANUAL / manual)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PluginError(f"mandoc: {manual}: {done.stderr}")
    html = re.sub(r"<(/?)h2\b", r"<\1h3", done.stdout)
    html = re.sub(r"<(/?)h1\b", r"<\1h2", html)
    for other in MANUALS:
        name, section = other.rsplit(".", 1)
        named = f"<b>{name}</b>({section})"
        html = html.replace(named, f'<a href="{other}.html">{named}</a>') if other != manual else html
    # An empty line would end the block of HTML.
    return f"# {title(manual)}\n\n<div>\n" + re.sub(r"\n\s*\n", "\n", html) + "\n</div>\n"


def on_page_markdown(markdown, page, config, files):
    """A link at each `mpsd(8)` outside of code."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    up = "../" * page.file.src_uri.count("/")
    names = "|".join(re.escape(title(manual)) for manual in MANUALS)

    def linked(match):
        name = match[0]
        if name.startswith("`"):
            return name
        return f"[{name}]({up}reference/{name[:-1].replace('(', '.')}.md)"

    return re.sub(rf"```.*?```|`[^`]*`|\b(?:{names})", linked, markdown, flags=re.S)


def on_page_content(html, page, config, files):
    """Labels each cell with its column, which site.css shows on a narrow screen."""

    def labelled(match):
        heads = re.findall(r"<th(?:\s[^>]*)?>(.*?)</th>", match[0], flags=re.S)
        heads = [re.sub(r"<[^>]+>", "", head).replace('"', "&quot;") for head in heads]

        def row(cells):
            columns = iter(heads)
            return re.sub(r"<td", lambda _: f'<td data-label="{next(columns, "")}"', cells[0])

        return re.sub(r"<tr>.*?</tr>", row, match[0], flags=re.S)

    return re.sub(r"<table>.*?</table>", labelled, html, flags=re.S)


def on_post_page(output, page, config):
    """The theme takes this script from another host, which a page from a disk may not reach."""
    up = "../" * page.url.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}search.js")
