"""Boards as Grafana's JSON, by its own builders, and the files that make Grafana read them."""

from __future__ import annotations

import json
import re

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from deploy.monitoring.board import EVERYTHING, Board, Panel, Variable

TAG = "inflight"
DATASOURCE_UID = "inflight-prometheus"
# Where the files of deploy/grafana are in Grafana's container.
DASHBOARDS_PATH = "/etc/grafana/dashboards"
# What queries of a panel are called in Grafana.
_REF_IDS = "ABCDEFGH"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

DATASOURCES = f"""\
# Written by python -m deploy.monitoring.
apiVersion: 1
datasources:
  - name: Prometheus
    uid: {DATASOURCE_UID}
    type: prometheus
    access: proxy
    url: http://prometheus:9090
    isDefault: true
    editable: false
    basicAuth: true
    basicAuthUser: inflight
    secureJsonData:
      basicAuthPassword: $__file{{/run/secrets/prometheus_password}}
    jsonData:
      httpMethod: POST
      timeInterval: 15s  # as often as prometheus.yml scrapes
"""

PROVIDERS = f"""\
# Written by python -m deploy.monitoring.
apiVersion: 1
providers:
  - name: inflight
    folder: Inflight
    type: file
    disableDeletion: true
    allowUiUpdates: false  # they are made from code: what is changed here would be lost
    options:
      path: {DASHBOARDS_PATH}
"""


def rendered(board: Board) -> str:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(_datasource())
        .link(
            dashboard.DashboardLink("Inflight")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in board.variables:
        made.with_variable(_variable(variable))
    number = 1
    for section in board.sections:
        made.with_row(dashboard.Row(section.title).id(number))
        for index, panel in enumerate(section.panels, number + 1):
            made.with_panel(_panel(panel, index))
        number += 1 + len(section.panels)
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


def _datasource() -> dashboard.DatasourceVariable:
    chosen = models.VariableOption(selected=True, text="Prometheus", value=DATASOURCE_UID)
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").current(chosen)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.title or variable.name.capitalize())
        .datasource(_SOURCE)
        .query(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(EVERYTHING)
        .current(everything)
    )


def _panel(panel: Panel, number: int) -> Builder[models.Panel]:
    if panel.kind == "number":
        return _number(panel, number)
    if panel.kind == "table":
        return _table(panel, number)
    made = timeseries.Panel()
    _describe(made, panel, number)
    made.fill_opacity(10 if panel.kind == "lines" else 60).line_width(1)
    made.show_points(common_models.VisibilityMode.NEVER).axis_soft_min(0)
    made.legend(_legend()).tooltip(_tooltip())
    if panel.kind == "stacked":
        made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for name, query in _named(panel):
        made.with_target(query.ref_id(name).range())
    return made


def _number(panel: Panel, number: int) -> stat.Panel:
    made = stat.Panel()
    _describe(made, panel, number)
    made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    made.graph_mode(common_models.BigValueGraphMode.NONE)
    made.color_mode(common_models.BigValueColorMode.VALUE)
    for name, query in _named(panel):
        made.with_target(query.ref_id(name).instant())
    return made


def _table(panel: Panel, number: int) -> table.Panel:
    made = table.Panel().show_header(True)
    _describe(made, panel, number)
    for name, query in _named(panel):
        made.with_target(query.ref_id(name).instant().format(prometheus_models.PromQueryFormat.TABLE))
    # One row for each set of labels; the columns of values are called after what the legends say beside them.
    columns = {
        f"Value #{name}": re.sub(r"\{\{\w+\}\}", "", query.legend).strip()
        for name, query in zip(_REF_IDS, panel.queries, strict=False)
    }
    made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    shown = {"excludeByName": {"Time": True}, "renameByName": columns}
    made.with_transformation(models.DataTransformerConfig(id_val="organize", options=shown))
    return made


def _describe(made: timeseries.Panel | stat.Panel | table.Panel, panel: Panel, number: int) -> None:
    """What all kinds of panels have."""
    made.id(number).title(panel.title).description(panel.description).datasource(_SOURCE)
    made.unit(panel.unit).min(0).span(panel.width).height(panel.height)
    if panel.no_value:
        made.no_value(panel.no_value)
    if panel.largest is not None:
        made.max(panel.largest)
    if panel.steps:
        steps = [models.Threshold(value, colour) for value, colour in panel.steps]
        made.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))


def _named(panel: Panel) -> list[tuple[str, prometheus.Dataquery]]:
    return [
        (name, prometheus.Dataquery().expr(each.expr).legend_format(each.legend))
        for name, each in zip(_REF_IDS, panel.queries, strict=False)
    ]


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _tooltip() -> common.VizTooltipOptions:
    return (
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
