"""The pages of the site: the repository's, at the same places, and the man pages in reference/."""

import json
import os
import re
import subprocess
import tempfile
from html import unescape
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.toc import AnchorLink

# `cargo xtask docs` sets these: the repository, the directory with the man pages, mermaid.min.js, and the browser's command.
ROOT = Path(os.environ["MPSD_ROOT"])
MANUAL = Path(os.environ["MPSD_MANUAL"])
MERMAID = Path(os.environ["MPSD_MERMAID"])
BROWSER = os.environ["MPSD_BROWSER"].split()
# Narrow, so that its letters are as large as the page's.
SEQUENCE = json.dumps({"width": 125, "actorMargin": 20, "messageFontSize": 14, "actorFontSize": 14})
LONGEST_WHOLE = 20  # characters, as in check.html
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
    """A link at each `mpsd(8)` outside of code. A search shows what users read first, and what developers read last."""
    page.meta["search"] = {"boost": boost(page.file.src_uri)}
    if page.file.src_uri.startswith("reference/"):
        return markdown
    up = "../" * page.file.src_uri.count("/")
    names = "|".join(re.escape(title(manual)) for manual in MANUALS)

    def linked(match):
        name = match[0]
        if name.startswith("`"):
            return name
        return f"[{name}]({up}reference/{name[:-1].replace('(', '.')}.md)"

    markdown = re.sub(rf"```.*?```|`[^`]*`|\b(?:{names})", linked, markdown, flags=re.S)
    return re.sub(r"```mermaid\n(.*?)\n```", lambda block: drawn(block[1], page.file.src_uri), markdown, flags=re.S)


def drawn(diagram, page):
    """A diagram in the theme's two colors, of which site.css shows one. Without scripts, and without an empty line, as above."""
    draw = """
        (async () => {
          for (const theme of ["default", "dark"]) {
            mermaid.initialize({startOnLoad: false, theme, fontFamily: "sans-serif", wrap: true, sequence: SEQUENCE});
            const {svg} = await mermaid.render("drawn-" + theme, DIAGRAM);
            document.getElementById(theme).innerHTML = svg;
          }
        })().catch((error) => document.body.replaceChildren(error));"""
    text = json.dumps(diagram).replace("</", "<\\/")
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "draw.html"
        source.write_text(
            f'<!doctype html><div id="default"></div><div id="dark"></div><script src="{MERMAID.as_uri()}"></script>'
            f"<script>{draw.replace('DIAGRAM', text).replace('SEQUENCE', SEQUENCE)}</script>"
        )
        command = [*BROWSER, f"--user-data-dir={work}/browser", "--dump-dom", source.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = dict(re.findall(r'<div id="(default|dark)">(<svg.*?</svg>)</div>', done.stdout, flags=re.S))
    if len(found) != 2:
        said = re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]+>", "", done.stdout, flags=re.S).strip()
        raise PluginError(f"{page}: a diagram is not drawn: {unescape(said) or done.stderr}")
    parts = "".join(f'<div class="drawn drawn-{theme}">{svg}</div>' for theme, svg in found.items())
    return re.sub(r"\n\s*", " ", f"<div>{parts}</div>")


def boost(page):
    if page == "docs/troubleshooting.md":
        return 4
    if page in ("docs/quick-start.md", "docs/recipes.md", "docs/operations.md", "reference/spank_mps.8.md"):
        return 2
    late = "/" not in page and page != "README.md" or page.startswith(("docs/facts/", "docs/newer-drivers"))
    return 0.05 if late else 1


def on_page_content(html, page, config, files):
    """Gives a man page, whose headings are HTML, its table of contents. Keeps options whole, and labels the cells."""
    if page.file.src_uri.startswith("reference/"):
        [top] = page.toc.items
        top.children = contents(html)
    # Code in a block, which is no element's whole text, is left alone.
    html = re.sub(r"(?<!</span>)<(code|b)>([^<]*)</\1>", whole_words, html)
    whole = rf"--[a-z][a-z-]{{1,{LONGEST_WHOLE - 3}}}|\d{{4}}-\d\d(?:-\d\d)?"
    html = re.sub(rf"(<[^>]*>)|(?<![\w-])(?:{whole})(?![\w-])", whole_text, html)
    long = rf"(<[^>]*>)|\w{{{LONGEST_WHOLE},}}"
    html = re.sub(long, lambda match: match[1] or match[0].replace("_", "_<wbr>"), html)
    # The columns of a chart are its time.
    html = re.sub(r"(?m)((?:^    (?:clients|GPU \d+|time) {2,}.*\n)+)", r'<span class="chart">\1</span>', html)
    return labelled_cells(html)


def contents(html):
    sections = []
    for level, anchor, text in re.findall(r'<h([23]) class="S[hs]" id="([^"]+)">(.*?)</h\1>', html, flags=re.S):
        text = " ".join(re.sub(r"<[^>]+>", "", text).split())
        above = sections if level == "2" or not sections else sections[-1].children
        above.append(AnchorLink(text, anchor, int(level)))
    return sections


def whole_words(match):
    """A browser breaks a line behind a hyphen, and a name where a column ends. site.css keeps these words whole; a longer one may not fit into a column."""
    tag, text = match.groups()
    word = r"(?:[^\s/_.,&]|&\w+;)*-(?:[^\s/_.,&]|&\w+;)+|\w+_\w+"

    def whole(found):
        length = len(unescape(found[0]))
        return f'<span class="whole">{found[0]}</span>' if length <= LONGEST_WHOLE else found[0]

    return f"<{tag}>{re.sub(word, whole, text)}</{tag}>"


def whole_text(match):
    return match[1] or f'<span class="whole">{match[0]}</span>'


def labelled_cells(html):
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
