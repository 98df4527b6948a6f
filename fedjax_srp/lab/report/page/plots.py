"""Empty figures of the report page, which its scripts fill with data.

Bokeh is imported when they are built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedjax_srp.lab.report import drawing

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812

TEXT = "#222222"
MUTED = "#555555"
GRID = drawing.RC["grid.color"]
HEIGHT = 380  # pixels
SHADE = 0.14  # opacity of bands, as in the other figures
BLUES = ("#FFFFFF", "#0072B2")  # for no participant, and for all


def figures() -> dict[str, Figure]:
    """Return every figure of the page by its element's id.

    Scripts find sources, ranges and axes by their names.
    """
    return {
        "time": _curves("simulated time (time units)"),
        "rounds": _curves("round"),
        "cohort": _cohorts(),
        "map": _map(),
        "quarters": _quarters(),
        "clients": _boxes(),
        "evaluations": _evaluations(),
    }


def _new(x: str, y: str, **options: Any) -> Figure:
    from bokeh.models import BoxZoomTool, PanTool, ResetTool, SaveTool
    from bokeh.plotting import figure

    drawn = figure(
        height=HEIGHT,
        sizing_mode="stretch_width",
        output_backend="svg",
        tools=[PanTool(), BoxZoomTool(), ResetTool(), SaveTool()],
        active_drag=None,  # so that a finger scrolls the page
        toolbar_location="above",
        x_axis_label=x,
        y_axis_label=y,
        min_border_right=14,
        **options,
    )
    drawn.toolbar.logo = None
    drawn.outline_line_color = None
    for axis in drawn.axis:
        axis.axis_label_text_color = TEXT
        axis.major_label_text_color = TEXT
        axis.axis_label_text_font_style = "normal"
        axis.axis_line_color = MUTED
        axis.major_tick_line_color = MUTED
        axis.minor_tick_line_color = None
    drawn.grid.grid_line_color = GRID
    return drawn


def _ranges() -> dict[str, Any]:
    from bokeh.models import Range1d

    return {
        "x_range": Range1d(start=0, end=1, name="x"),
        "y_range": Range1d(start=0, end=100, name="y"),
    }


def _source(name: str, *columns: str) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({column: [] for column in columns}, name=name)


def _hover(
    drawn: Figure, renderer: Any, *tooltips: tuple[str, str], **options: Any
) -> None:
    from bokeh.models import HoverTool

    drawn.add_tools(
        HoverTool(renderers=[renderer], tooltips=list(tooltips), visible=False, **options)
    )


def _lines(drawn: Figure) -> Any:
    source = _source("lines", "xs", "ys", "color", "dash", "width", "name")
    return drawn.multi_line(
        "xs",
        "ys",
        line_color="color",
        line_dash="dash",
        line_width="width",
        line_join="round",
        source=source,
    )


def _curves(x: str) -> Figure:
    """Return a figure of lines with bands, marks at the beginnings of stages, and the target."""
    from bokeh.models import Span

    drawn = _new(x, "mean accuracy (%)", **_ranges())
    bands = _source("bands", "xs", "ys", "color")
    drawn.patches(
        "xs", "ys", fill_color="color", fill_alpha=SHADE, line_color=None, source=bands
    )
    lines = _lines(drawn)
    stages = _source("stages", "x", "y", "color")
    drawn.scatter(
        "x",
        "y",
        size=7,
        fill_color="white",
        line_color="color",
        line_width=1.4,
        source=stages,
    )
    dots = _source("dots", "x", "y", "color", "name", "marker")
    points = drawn.scatter("x", "y", size=7, color="color", marker="marker", source=dots)
    span = Span(name="target", dimension="width", location=0, line_color=MUTED)
    drawn.add_layout(span)
    for renderer in (lines, points):
        _hover(
            drawn,
            renderer,
            ("", "@name"),
            (x, "$x{0.[0]}"),
            ("%", "$y{0.0}"),
            line_policy="nearest",
        )
    return drawn


def _cohorts() -> Figure:
    drawn = _new("simulated time (time units)", "clients in the round", **_ranges())
    lines = _lines(drawn)
    _hover(
        drawn,
        lines,
        ("", "@name"),
        ("time", "$x{0.[0]}"),
        ("clients", "$y{0}"),
        line_policy="nearest",
    )
    return drawn


def _map() -> Figure:
    """Return a map of the share of each band of clients that takes part, by round."""
    from bokeh.models import LinearColorMapper
    from bokeh.palettes import interp_palette

    drawn = _new("round", "clients, fastest below", **_ranges())
    mapper = LinearColorMapper(palette=interp_palette(BLUES, 64), low=0, high=1)
    source = _source("image", "image", "x", "y", "dw", "dh")
    place = {"x": "x", "y": "y", "dw": "dw", "dh": "dh"}
    image = drawn.image("image", **place, color_mapper=mapper, source=source)  # pyright: ignore[reportCallIssue]
    drawn.grid.grid_line_color = None
    _hover(
        drawn, image, ("round", "$x{0}"), ("clients", "$y{0}"), ("share", "@image{0.00}")
    )
    return drawn


def _quarters() -> Figure:
    from bokeh.models import FixedTicker

    drawn = _new("quarter of the clients, by speed", "accuracy (%)", **_ranges())
    axis = drawn.xaxis[0]
    axis.ticker = FixedTicker(ticks=[1, 2, 3, 4])
    axis.major_label_overrides = {1: "fastest", 2: "2nd", 3: "3rd", 4: "slowest"}
    spread = _source("spread", "x", "low", "high", "color")
    drawn.segment(
        "x", "low", "x", "high", line_color="color", line_width=1.2, source=spread
    )
    _lines(drawn)
    dots = _source("dots", "x", "y", "color", "name")
    points = drawn.scatter("x", "y", size=7, color="color", source=dots)
    _hover(drawn, points, ("", "@name"), ("%", "@y{0.0}"))
    return drawn


def _named_rows(x: str) -> Figure:
    """Return a figure of quantiles of the accuracies of clients; large dots are many clients."""
    drawn = _new(x, "", **_ranges())
    drawn.min_border_left = 8
    drawn.yaxis.visible = False
    drawn.ygrid.visible = False
    names = _source("names", "x", "y", "text")
    drawn.text(
        "x",
        "y",
        "text",
        text_font_size="12px",
        text_color=TEXT,
        text_baseline="bottom",
        source=names,
    )
    return drawn


def _boxes() -> Figure:
    """Return a figure of quantiles of the clients' accuracy; a dot is larger for more clients."""
    drawn = _named_rows("accuracy of a client (%)")
    dots = _source("dots", "x", "y", "color", "size", "count")
    drawn.scatter(
        "x",
        "y",
        size="size",
        fill_color="color",
        fill_alpha=0.4,
        line_color=None,
        source=dots,
    )
    quantiles = ("q0", "q10", "q25", "q50", "q75", "q90", "q100")
    boxes = _source("boxes", "y", "low", "high", "name", "color", *quantiles)
    drawn.segment("q10", "y", "q90", "y", line_color="color", line_width=2, source=boxes)
    box = drawn.hbar(
        "y",
        left="q25",
        right="q75",
        height=0.32,
        line_color="color",
        line_width=2,
        source=boxes,
    )
    box.glyph.fill_alpha = 0.0
    drawn.segment(
        "q50", "low", "q50", "high", line_color=TEXT, line_width=4, source=boxes
    )
    tips = [
        (f"{name} of the clients below", f"@{column}{{0.0}} %")
        for name, column in QUANTILES
    ]
    _hover(drawn, box, ("", "@name"), *tips)
    return drawn


QUANTILES = (
    ("10 %", "q10"),
    ("25 %", "q25"),
    ("half", "q50"),
    ("75 %", "q75"),
    ("90 %", "q90"),
)


def _evaluations() -> Figure:
    drawn = _named_rows("final mean accuracy (%)")
    spread = _source("spread", "y", "low", "high")
    drawn.segment(
        "low", "y", "high", "y", line_color=MUTED, line_width=1.2, source=spread
    )
    dots = _source("dots", "x", "y", "color", "marker", "name", "evaluation")
    points = drawn.scatter(
        "x",
        "y",
        marker="marker",
        size=10,
        line_color="color",
        fill_color="color",
        fill_alpha=0.35,
        source=dots,
    )
    _hover(drawn, points, ("", "@name"), ("judged by", "@evaluation"), ("%", "@x{0.0}"))
    return drawn
