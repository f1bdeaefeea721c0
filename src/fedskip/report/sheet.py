"""A table of text: on a terminal, where it is folded between columns; as Markdown, LaTeX and HTML."""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

BEST = "bold green"
GAP = 3  # that a column takes besides its cells: a space on both sides, and one between it and the next


@dataclass(frozen=True)
class Sheet:
    """Cells under headers; the first columns name a row. Too wide a sheet is folded between columns."""

    title: str
    headers: Sequence[str]
    names: int  # how many columns name a row
    rows: Sequence[Sequence[Text]]  # an empty one is a gap
    note: str = ""  # what its numbers are

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        parts = self.folded(options.max_width)
        for number, columns in enumerate(parts):
            yield self._part(columns, self.title if not number else None)

    def folded(self, width: int) -> list[list[int]]:
        """The columns of each part: as many as fit beside the names, and at least one."""
        room = [
            GAP + max([cell_len(header), *(row[i].cell_len for row in self.rows if row)])
            for i, header in enumerate(self.headers)
        ]
        parts: list[list[int]] = []
        left = 0
        for i in range(self.names, len(self.headers)):
            if not parts or room[i] > left:
                parts.append([*range(self.names)])
                left = width - sum(room[: self.names]) - 1  # at the edge
            parts[-1].append(i)
            left -= room[i]
        return parts or [[*range(self.names)]]

    def _part(self, columns: Sequence[int], title: str | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left")
        for i in columns:
            names = i < self.names
            table.add_column(
                self.headers[i], justify="left" if names else "right", no_wrap=not names, overflow="fold"
            )
        for row in self.rows:
            if row:
                table.add_row(*(row[i] for i in columns))
            else:
                table.add_section()
        return table

    # --- for papers and pages ------------------------------------------------------------------------

    def markdown(self) -> str:
        """For a README or an issue; what is best is bold. Below it stands what its numbers are."""

        def cell(text: Text) -> str:
            plain = re.sub(r"([|*`])", r"\\\1", text.plain).replace("<", "&lt;")
            return f"**{plain}**" if text.style == BEST else plain

        rule = ["---"] * self.names + ["---:"] * (len(self.headers) - self.names)
        lines = [self.headers, rule, *(map(cell, row) for row in self.rows if row)]
        note = ["", self.note] if self.note else []
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *note, ""])

    def latex(self, label: str = "") -> str:
        """For a paper: a table with the rules of `booktabs`; what is best is bold."""
        caption = ". ".join(part for part in (self.title, self.note) if part)
        columns = "l" * self.names + "r" * (len(self.headers) - self.names)
        body = [r"\midrule" if not row else " & ".join(map(_latex_cell, row)) + r" \\" for row in self.rows]
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering",
                f"\\caption{{{_latex(caption)}}}", *([f"\\label{{tab:{label}}}"] if label else []),
                f"\\begin{{tabular}}{{{columns}}}", r"\toprule",
                " & ".join(map(_latex, self.headers)) + r" \\", r"\midrule", *body, r"\bottomrule",
                r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip

    def html(self, mark: str = "class=best") -> str:
        """For a page: a table whose numbers are never cut; what is best has an attribute."""

        def cell(tag: str, text: str, best: bool = False) -> str:
            return f"<{tag}{f' {mark}' if best else ''}>{html.escape(text)}</{tag}>"

        head = "".join(cell("th", header) for header in self.headers)
        body = [
            "".join(
                cell("th" if i < self.names else "td", text.plain, text.style == BEST)
                for i, text in enumerate(row)
            )
            for row in self.rows
            if row
        ]
        lines = "".join(f"<tr>{line}</tr>" for line in body)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "[": "{[}"}
_SPECIAL |= {"±": r"$\pm$", "–": "--", "−": "$-$", "Δ": r"$\Delta$", "β": r"$\beta$"}


def _latex(text: str) -> str:
    signs = re.sub(r"(?<![\w.])-(?=\d)", "−", text)  # of a number, not of a name
    return "".join(_SPECIAL.get(sign, sign) for sign in signs)


def _latex_cell(text: Text) -> str:
    return f"\\textbf{{{_latex(text.plain)}}}" if text.style == BEST else _latex(text.plain)
